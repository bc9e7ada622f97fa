package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
)

// publisher is one that the test closes, and that leaves nothing behind.
func publisher(t *testing.T, config kafka.PublisherConfig) *kafka.Publisher {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	p := kafka.NewPublisher(config)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// event is an event of a topic. An empty key is none.
func event(topic, key, id string) outbox.Event {
	e := outbox.Event{Message: outbox.Message{ID: id, Topic: topic, Payload: []byte("payload of " + id)}, CreatedAt: time.Now()}
	if key != "" {
		e.Key = []byte(key)
	}
	return e
}

// acknowledged demands that all events were published.
func acknowledged(t *testing.T, results []error) {
	t.Helper()
	for i, err := range results {
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
}

// K11: the database's clock may be an hour ahead of the brokers', who refuse such times.
func TestK11EventsOfAClockThatIsAheadAreTaken(t *testing.T) {
	t.Parallel()
	addr := stack.Kafka(t).Addr
	topic := stack.Topic(t, addr, 1)
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{addr}})
	late := event(topic, "a", "2")
	late.CreatedAt = late.CreatedAt.Add(61 * time.Minute)
	acknowledged(t, p.Publish(t.Context(), []outbox.Event{event(topic, "a", "1"), late, event(topic, "a", "3")}))
}

// fetched is a record that kafka-go read back.
type fetched struct {
	partition  int
	offset     int64
	key, value []byte
	headers    []kafkago.Header
	time       time.Time
}

func (f fetched) id() string {
	for _, h := range f.headers {
		if h.Key == outbox.HeaderID {
			return string(h.Value)
		}
	}
	return ""
}

// readAll reads all records of a topic with kafka-go, each partition in order.
func readAll(t *testing.T, addr, topic string, partitions int) []fetched {
	t.Helper()
	c := client(t, addr)
	var out []fetched
	for p := range partitions {
		ends, err := c.ListOffsets(t.Context(), &kafkago.ListOffsetsRequest{
			Topics: map[string][]kafkago.OffsetRequest{topic: {kafkago.LastOffsetOf(p)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		end := ends.Topics[topic][0].LastOffset
		for offset := int64(0); offset < end; {
			response, err := c.Fetch(t.Context(), &kafkago.FetchRequest{
				Topic: topic, Partition: p, Offset: offset, MinBytes: 1, MaxBytes: 64 << 20, MaxWait: time.Second,
			})
			if err == nil {
				err = response.Error
			}
			if err != nil {
				t.Fatal(err)
			}
			for {
				r, err := response.Records.ReadRecord()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				key, _ := kafkago.ReadAll(r.Key)
				value, _ := kafkago.ReadAll(r.Value)
				out = append(out, fetched{partition: p, offset: r.Offset, key: key, value: value, headers: r.Headers, time: r.Time})
				offset = r.Offset + 1
			}
		}
	}
	return out
}

// K11: what is published is there, once each, in order per key, on every partition, with its id, headers and time; events
// without a key are spread over the partitions, in large batches.
func TestK11EventsArriveWithIDHeadersAndTime(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 4)
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}})
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := time.Now().Add(-time.Hour).Truncate(time.Millisecond) // Kafka deletes records whose time is over the retention
	next, total := 0, 0
	for range 20 {
		var events []outbox.Event
		for range 100 {
			key := ""
			if next%10 != 0 {
				key = "key-" + strconv.Itoa(next%7)
			}
			e := event(topic, key, "e"+strconv.Itoa(next))
			e.CreatedAt = written.Add(time.Duration(next) * time.Millisecond)
			e.Headers = []outbox.Header{{Name: "trace", Value: []byte("t" + e.ID)}, {Name: "trace", Value: []byte("again")}}
			events = append(events, e)
			next++
		}
		acknowledged(t, p.Publish(t.Context(), events))
		total += len(events)
	}
	last, partition, keyless, all := map[string]int{}, map[string]int{}, map[int]int{}, readAll(t, broker.Addr, topic, 4)
	for _, r := range all {
		n, err := strconv.Atoi(r.id()[1:])
		if err != nil {
			t.Fatal(err)
		}
		if want := written.Add(time.Duration(n) * time.Millisecond); !r.time.Equal(want) {
			t.Errorf("%s has the time %v, want %v", r.id(), r.time, want)
		}
		if len(r.headers) != 3 || r.headers[1].Key != "trace" || string(r.headers[1].Value) != "t"+r.id() || string(r.headers[2].Value) != "again" {
			t.Errorf("%s has the headers %v", r.id(), r.headers)
		}
		if r.key == nil {
			keyless[r.partition]++
			continue
		}
		key := string(r.key)
		if before, seen := last[key]; seen && n <= before {
			t.Errorf("key %s: %d after %d", key, n, before)
		}
		if before, seen := partition[key]; seen && before != r.partition {
			t.Errorf("key %s is in partitions %d and %d", key, before, r.partition)
		}
		last[key], partition[key] = n, r.partition
	}
	if len(all) != total {
		t.Errorf("%d records, want %d", len(all), total)
	}
	if len(keyless) != 4 {
		t.Errorf("events without a key are in partitions %v", keyless)
	}
}

// K13: null and empty are told apart for keys, payloads and header values, read back by kafka-go and by our consumer.
func TestK13PublishedNullAndEmptyAreToldApart(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 1)
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}})
	variants := [][]byte{nil, {}, []byte("x")}
	var events []outbox.Event
	for _, key := range variants {
		for _, payload := range variants {
			for _, header := range variants {
				events = append(events, outbox.Event{Message: outbox.Message{
					ID: "e" + strconv.Itoa(len(events)), Topic: topic, Key: key, Payload: payload,
					Headers: []outbox.Header{{Name: "h", Value: header}},
				}, CreatedAt: time.Now()})
			}
		}
	}
	acknowledged(t, p.Publish(t.Context(), events))

	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	records := readAll(t, broker.Addr, topic, 1)
	if len(records) != len(events) {
		t.Fatalf("%d records, want %d", len(records), len(events))
	}
	for i, r := range records {
		if e := events[i]; r.id() != e.ID || !same(r.key, e.Key) || !same(r.value, e.Payload) || !same(r.headers[1].Value, e.Headers[0].Value) {
			t.Errorf("kafka-go read %q %q %q, want %q %q %q", r.key, r.value, r.headers[1].Value, e.Key, e.Payload, e.Headers[0].Value)
		}
	}
	processor := &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) { return processed, nil }}
	config := quick(broker.Addr, topic)
	config.Group = topic
	r := consume(t, config, processor)
	eventually(t, "all messages", func() bool { return processor.distinct() == len(events) })
	r.stop()
	for i, m := range processor.settled() {
		if e := events[i]; m.ID != e.ID || !same(m.Key, e.Key) || !same(m.Payload, e.Payload) || !same(m.Headers[1].Value, e.Headers[0].Value) {
			t.Errorf("our consumer read %q %q %q, want %q %q %q", m.Key, m.Payload, m.Headers[1].Value, e.Key, e.Payload, e.Headers[0].Value)
		}
	}
}

// K18: a batch is at most MaxBatchBytes; where the topic takes less, it is halved until it fits, and only the event that is
// too large by itself fails, for good.
func TestK18BatchesAreSplitAndHalved(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 2, "max.message.bytes=20000")
	for name, codec := range map[string]kafkago.Compression{
		"plain": 0, "gzip": kafkago.Gzip, "snappy": kafkago.Snappy, "lz4": kafkago.Lz4, "zstd": kafkago.Zstd,
	} {
		t.Run(name, func(t *testing.T) {
			p := publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}, Compression: codec})
			var events []outbox.Event
			for i := range 100 {
				e := event(topic, "key-"+strconv.Itoa(i%5), fmt.Sprintf("%s-%d", name, i))
				e.Payload = bytes.Repeat([]byte{byte(i)}, 1000)
				if i == 52 { // of key-2
					e.Payload = noise(40_000)
				}
				events = append(events, e)
			}
			results := p.Publish(t.Context(), events)
			for i, err := range results {
				switch {
				case i == 52:
					if !errors.Is(err, outbox.ErrPermanent) || !errors.Is(err, kafkago.MessageSizeTooLarge) {
						t.Errorf("the large one: %v", err)
					}
				case i > 52 && i%5 == 2:
					if !errors.Is(err, outbox.ErrBehind) {
						t.Errorf("event %d, behind the large one: %v", i, err)
					}
				case err != nil:
					t.Errorf("event %d: %v", i, err)
				}
			}
			last, count := map[string]int{}, 0
			for _, r := range readAll(t, broker.Addr, topic, 2) {
				var n int
				if _, err := fmt.Sscanf(r.id(), name+"-%d", &n); err != nil {
					continue // another codec's
				}
				count++
				if before, seen := last[string(r.key)]; seen && n <= before {
					t.Errorf("key %s: %d after %d", r.key, n, before)
				}
				last[string(r.key)] = n
			}
			if count != 100-1-9 {
				t.Errorf("%d records", count)
			}
		})
	}
}

// noise can't be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	for i, x := 0, uint32(1); i < n; i++ {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}
