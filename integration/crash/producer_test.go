package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/child"
)

const (
	partitions       = 4
	keysPerPartition = 8
	// chunk is how many new messages one produce request holds.
	chunk = 20
	// again are the odds that a message is sent once more, at once or later: one in so many.
	again = 8
)

// producer sends messages until it is told to stop. It belongs to one goroutine; its counts are read after that has ended.
type producer struct {
	t      testing.TB
	client *kafka.Client
	topic  string
	random *rand.Rand

	sent       map[string]int // the last number of each key
	messages   int            // with another id
	duplicates int            // copies sent on purpose, and whatever an unknown outcome sent twice

	recent [partitions][]record // to be sent again later
}

func newProducer(t testing.TB, broker, topic string, seed uint64) *producer {
	transport := &kafka.Transport{DialTimeout: 2 * time.Second, MetadataTTL: time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	return &producer{
		t: t, topic: topic, sent: map[string]int{}, random: newRandom(seed),
		client: &kafka.Client{Addr: kafka.TCP(broker), Timeout: 5 * time.Second, Transport: transport},
	}
}

// run sends chunk after chunk to the partitions in turn while wanted says so.
func (p *producer) run(ctx context.Context, wanted func(sent int) bool) {
	for partition := 0; wanted(p.messages); partition = (partition + 1) % partitions {
		if err := p.send(ctx, partition, p.next(partition)); err != nil {
			p.t.Errorf("producer: %v", err)
			return
		}
	}
}

// next makes the next records of a partition: new messages, and copies of these and older ones behind their first copy.
func (p *producer) next(partition int) []record {
	var records []record
	for range chunk {
		key := fmt.Sprintf("p%d-k%d", partition, p.random.IntN(keysPerPartition))
		p.sent[key]++
		p.messages++
		r := newRecord(key, p.sent[key])
		records = append(records, r)
		if p.random.IntN(again) == 0 {
			records = append(records, r)
			p.duplicates++
		}
		if old := p.recent[partition]; len(old) > 0 && p.random.IntN(again) == 0 {
			records = append(records, old[p.random.IntN(len(old))])
			p.duplicates++
		}
		p.recent[partition] = append(p.recent[partition], r)
	}
	p.recent[partition] = p.recent[partition][max(0, len(p.recent[partition])-500):]
	return records
}

// record is what is sent: kafka-go's own records are used up by sending them.
type record struct{ id, key, payload string }

func newRecord(key string, number int) record {
	return record{messageID(key, number), key, fmt.Sprintf(`{"key": %q, "number": %d}`, key, number)}
}

func messageID(key string, number int) string { return fmt.Sprintf("%s-%06d", key, number) }

// send repeats a request whose outcome is unknown until one is known to be good.
func (p *producer) send(ctx context.Context, partition int, records []record) error {
	ctx, cancel := context.WithTimeout(ctx, child.Patience)
	defer cancel()
	for {
		batch := make([]kafka.Record, len(records))
		for i, r := range records {
			batch[i] = kafka.Record{
				Key: kafka.NewBytes([]byte(r.key)), Value: kafka.NewBytes([]byte(r.payload)),
				Headers: []kafka.Header{{Key: inbox.HeaderID, Value: []byte(r.id)}},
			}
		}
		response, err := p.client.Produce(ctx, &kafka.ProduceRequest{
			Topic: p.topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(batch...),
		})
		if err == nil {
			err = response.Error
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// pause is the time between two looks at something that gives no sign.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
