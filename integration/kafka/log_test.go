package kafka_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
)

// K8: an offset below the start of the log is data loss: reported with its extent, and reading goes on at the start.
func TestK8OffsetBelowTheLogIsReportedAsLoss(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	for i := range 10 {
		produce(t, c, "orders", 0, numbered(i, i+1)...)
	}
	commitAs(t, c, "billing", "orders", 2)
	if err := cluster.DeleteRecords("orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	awaitCommitted(t, c, "orders", 0, 10)
	if event := r.await(kafka.EventDataLoss); event.Count != 5 || event.Message.Position != "orders/0/2" {
		t.Errorf("event %+v, want 5 offsets from orders/0/2", event)
	}
	r.stop()
	if got := processor.settled(); len(got) != 3 || got[0].ID != "m7" {
		t.Errorf("got %d messages", len(got))
	}
}

// K8: an offset beyond the end of the log would wait for ever: it is reported, and reading goes on at the start, because
// what the log holds may never have been handled. Only a group that starts at the last goes on at the end.
func TestK8OffsetBeyondTheLogIsReportedAndReset(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 5)...)
	commitAs(t, c, "billing", "orders", 1000)
	commitAs(t, c, "latest", "orders", 1000)
	first, last := &recorder{}, &recorder{}
	latest := quick(addr)
	latest.Group, latest.StartAt = "latest", kafka.StartLast
	r, l := consume(t, quick(addr), first), consume(t, latest, last)
	for _, running := range []*running{r, l} {
		if event := running.await(kafka.EventOffsetReset); event.Count != 995 {
			t.Errorf("event %+v, want 995 offsets", event)
		}
	}
	awaitCommitted(t, c, "orders", 0, 5)
	produce(t, c, "orders", 0, numbered(5, 8)...)
	awaitCommitted(t, c, "orders", 0, 8)
	eventually(t, "three messages for the group that starts at the last", func() bool { return last.distinct() == 3 })
	r.stop()
	l.stop()
	if got := first.settled(); len(got) != 8 || got[0].ID != "m0" {
		t.Errorf("StartFirst got %d messages", len(got))
	}
	if got := last.settled(); len(got) != 3 || got[0].ID != "m5" {
		t.Errorf("StartLast got %d messages", len(got))
	}
}

// K8: a partition that makes no progress is noticed, whatever holds it up: here the broker, which fails every fetch.
func TestK8PartitionWithoutProgressIsNoticed(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	failing := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Count: -1})
	config := quick(addr)
	config.StalledAfter = 300 * time.Millisecond
	r := consume(t, config, &recorder{})
	if event := r.await(kafka.EventStalled); event.Err == nil {
		t.Errorf("event %+v names no cause", event)
	}
	if n := len(r.seen(kafka.EventRetry)); n != 1 {
		t.Errorf("%d events for one row of failures", n)
	}
	failing.Remove()
	awaitCommitted(t, c, "orders", 0, 1)
	r.await(kafka.EventRecovered)
	r.stop()
}

// K9: without a committed offset a group starts at the first record.
func TestK9StartsAtTheFirstByDefault(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 5)...)
	r := consume(t, quick(addr), &recorder{})
	awaitCommitted(t, c, "orders", 0, 5)
	r.stop()
}

// K9: the last offset is pinned by a commit before the first fetch, so what comes while the consumer is down is read.
func TestK9StartLastIsCommittedBeforeTheFirstFetch(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 10)...)
	var pinned atomic.Bool
	cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		pinned.Store(true)
		return nil, nil, false
	})
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		if !pinned.Load() {
			t.Error("a fetch came before the commit")
		}
		return nil, nil, false
	})
	config := quick(addr)
	config.StartAt = kafka.StartLast
	processor := &recorder{}
	r := consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, 10)
	r.stop()
	if n := processor.distinct(); n != 0 {
		t.Fatalf("%d old messages", n)
	}
	produce(t, c, "orders", 0, numbered(10, 15)...)
	r = consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, 15)
	r.stop()
	if n := processor.distinct(); n != 5 {
		t.Errorf("%d messages, want 5", n)
	}
}

// K9: a partition that is added while the consumer runs is read from its first record, wherever the group starts.
func TestK9StartLastSkipsNothingOfANewPartition(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 5)...)
	config := quick(addr)
	config.StartAt = kafka.StartLast
	processor := &recorder{}
	r := consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, 5)
	addPartitions(t, c, "orders", 2)
	produce(t, client(t, addr), "orders", 1, numbered(5, 9)...)
	awaitCommitted(t, c, "orders", 1, 4)
	r.stop()
	if n := processor.distinct(); n != 4 {
		t.Errorf("%d messages, want 4", n)
	}
}

func addPartitions(t *testing.T, c *kafkago.Client, topic string, count int32) {
	t.Helper()
	response, err := c.CreatePartitions(t.Context(), &kafkago.CreatePartitionsRequest{
		Topics: []kafkago.TopicPartitionsConfig{{Name: topic, Count: count}},
	})
	if err == nil {
		err = response.Errors[topic]
	}
	if err != nil {
		t.Fatal(err)
	}
}

// K13: null and empty are told apart for keys, values and headers; a tombstone survives.
func TestK13NullAndEmptyAreToldApart(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	header := func(value []byte) []kafkago.Header {
		return []kafkago.Header{{Key: inbox.HeaderID, Value: []byte("id")}, {Key: "h", Value: value}, {Key: "h", Value: []byte("again")}}
	}
	produce(t, c, "orders", 0,
		kafkago.Record{Headers: header(nil)},
		kafkago.Record{Key: kafkago.NewBytes([]byte{}), Value: kafkago.NewBytes([]byte{}), Headers: header([]byte{})},
		kafkago.Record{Key: kafkago.NewBytes([]byte("k")), Headers: header([]byte("v"))},
		kafkago.Record{Value: kafkago.NewBytes([]byte("v"))},
	)
	config := quick(addr)
	config.Identity.Missing = inbox.PositionID
	processor := &recorder{}
	r := consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, 4)
	r.stop()

	type want struct{ key, payload, header []byte }
	for i, w := range []want{{nil, nil, nil}, {[]byte{}, []byte{}, []byte{}}, {[]byte("k"), nil, []byte("v")}, {nil, []byte("v"), nil}} {
		m := processor.settled()[i]
		got, _ := m.Header("h")
		for name, pair := range map[string][2][]byte{"key": {m.Key, w.key}, "payload": {m.Payload, w.payload}, "header": {got, w.header}} {
			if (pair[0] == nil) != (pair[1] == nil) || !bytes.Equal(pair[0], pair[1]) {
				t.Errorf("message %d: %s is %#v, want %#v", i, name, pair[0], pair[1])
			}
		}
	}
	if id := processor.settled()[3].ID; id != "orders/0/3" {
		t.Errorf("ID %q, want the position", id)
	}
	if n := len(processor.settled()[0].Headers); n != 3 {
		t.Errorf("%d headers, want 3", n)
	}
}

// K16: what a leader answers while it moves is retried, and no record is lost.
func TestK16LeaderChangesAreFollowed(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 2, kfake.NumBrokers(3))
	c := client(t, addr)
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	n := 0
	for i := range 6 {
		moved := client(t, addr) // knows the leaders as they are now
		produce(t, moved, "orders", i%2, numbered(n, n+20)...)
		n += 20
		if err := cluster.MoveTopicPartition("orders", int32(i%2), int32(i%3)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all messages", func() bool { return processor.distinct() == n })
	awaitCommitted(t, c, "orders", 0, 60)
	r.stop()
}

// Arrays are received in again, but the bytes of a message stand still until it is settled: while it waits to be tried
// again, while other lanes settle what lies beside it, and whatever is appended to one that lies before it.
func TestBytesStandStillUntilTheirMessageIsSettled(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 4} {
		t.Run(strconv.Itoa(lanes)+" lanes", func(t *testing.T) {
			t.Parallel()
			_, addr := fakeCluster(t, 2)
			c := client(t, addr)
			const each, size = 2000, 4 << 10
			value := func(id string) []byte { return bytes.Repeat([]byte(id+","), size/(len(id)+1)) }
			for p := range 2 {
				for from := p * each; from < (p+1)*each; from += 100 {
					records := numbered(from, from+100)
					for i := range records {
						records[i].Value = kafkago.NewBytes(value("m" + strconv.Itoa(from+i)))
					}
					produce(t, c, "orders", p, records...)
				}
			}
			whole := func(m inbox.Message) bool {
				return string(m.Key) == "key-"+m.ID && bytes.Equal(m.Payload, value(m.ID)) && string(m.Headers[0].Value) == m.ID
			}
			processor := &recorder{handle: func(_ context.Context, m inbox.Message) (inbox.Result, error) {
				if !whole(m) {
					t.Errorf("%s at %s holds %q …", m.ID, m.Position, m.Payload[:20])
				}
				_ = append(m.Payload, "overflow"...) // must not reach the next record
				_ = append(m.Key, "overflow"...)
				if rand.N(500) == 0 {
					return inbox.Result{Outcome: inbox.Failed, RetryAfter: rand.N(20 * time.Millisecond)}, nil
				}
				return processed, nil
			}}
			config := quick(addr)
			config.KeyParallelism, config.FetchMaxBytes = lanes, 256<<10
			r := consume(t, config, processor)
			for p := range 2 {
				awaitCommitted(t, c, "orders", p, each)
			}
			r.stop()
			for _, m := range processor.settled() {
				if !whole(m) {
					t.Fatalf("%s was overwritten before it was settled", m.ID)
				}
			}
		})
	}
}

// X7: a corrupt batch is said even while other failures are already being retried, and what lies behind it waits.
func TestX7CorruptBatchIsSaidAfterAnotherFailure(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 3)...)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.UnknownServerError, Count: 2})
	corrupt := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.CorruptMessage, Count: -1})
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	if event := r.await(kafka.EventCorrupt); event.Message.Position != "orders/0/0" || event.Err == nil {
		t.Errorf("event %+v", event)
	}
	if err := corrupt.Wait(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if retries, corrupts := len(r.seen(kafka.EventRetry)), len(r.seen(kafka.EventCorrupt)); retries != 1 || corrupts != 1 {
		t.Errorf("%d and %d events, want one of each kind for the row", retries, corrupts)
	}
	if n := processor.distinct(); n > 0 {
		t.Errorf("%d messages were delivered", n)
	}
	corrupt.Remove()
	awaitCommitted(t, c, "orders", 0, 3)
	r.await(kafka.EventRecovered)
	r.stop()
}
