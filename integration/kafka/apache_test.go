package kafka_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// K14: rolling restarts with two members on Apache Kafka: nothing is lost, every effect happens once, offsets end at
// the end.
func TestK14RollingRestartsLoseNothing(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 4)
	c := client(t, broker.Addr)
	config := quick(broker.Addr, topic)
	config.Group = topic
	processor := &recorder{}
	members := [2]*running{consume(t, config, processor), consume(t, config, processor)}
	n := 0
	for round := range 6 {
		for p := range 4 {
			produce(t, c, topic, p, numbered(n, n+250)...)
			n += 250
		}
		members[round%2].stop()
		members[round%2] = consume(t, config, processor)
		members[round%2].await(kafka.EventJoined)
	}
	eventually(t, "all messages", func() bool { return processor.distinct() == n })
	for p := range 4 {
		eventually(t, "all offsets", func() bool { return committedBy(c, topic, topic, p) == int64(n/4) })
	}
	members[0].stop()
	members[1].stop()
}

// K14: a member that the broker has evicted cancels its handlers at once, and the message is handled elsewhere.
func TestK14EvictedMemberStopsAtOnce(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	var tries atomic.Int32
	var cancelled atomic.Int64
	processor := &recorder{handle: func(ctx context.Context, _ inbox.Message) (inbox.Result, error) {
		if tries.Add(1) > 1 {
			return processed, nil
		}
		<-ctx.Done()
		cancelled.Store(time.Now().UnixNano())
		return inbox.Result{}, ctx.Err()
	}}
	config := quick(addr)
	config.DrainTimeout = 9 * time.Second
	r := consume(t, config, processor)
	eventually(t, "the handler", func() bool { return tries.Load() == 1 })
	began := time.Now()
	evicted := cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.UnknownMemberID, Count: -1},
		kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownMemberID, Count: -1},
	)
	r.await(kafka.EventHandlersCancelled)
	evicted.Remove()
	awaitCommitted(t, c, "orders", 0, 1)
	r.stop()
	if took := time.Unix(0, cancelled.Load()).Sub(began); took > 5*time.Second {
		t.Errorf("the handler was cancelled after %v", took)
	}
	if n := processor.distinct(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// K15: a consumer that is given a Java group's name is refused with a way out, and the Java consumer is not disturbed.
func TestK15JavaGroupIsLeftAlone(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 2)
	c := client(t, broker.Addr)
	java := startJava(t, "Member", broker.Addr, topic, topic)
	eventually(t, "Java's assignment", func() bool { return len(java.printed("assigned 2")) == 1 })

	config := quick(broker.Addr, topic)
	config.Group = topic
	err := consume(t, config, &recorder{}).result()
	if err == nil || !strings.Contains(err.Error(), "new Group") {
		t.Errorf("error %v", err)
	}
	produce(t, c, topic, 0, numbered(0, 5)...)
	eventually(t, "Java's records", func() bool { return len(java.printed("value-m")) == 5 })
	if failed := java.printed("failed"); len(failed) > 0 {
		t.Errorf("Java's consumer died: %v", failed)
	}
}

// K16: a compacted log, with empty batches of producers that are gone, is read to its end from every offset, without a
// panic or a spin.
func TestK16CompactedLogIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 1,
		"cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01", "segment.ms=200", "max.compaction.lag.ms=500", "delete.retention.ms=0")
	runJava(t, "Compacted", broker.Addr, topic, "4", "100")
	c := client(t, broker.Addr)
	read := func(from int64) int {
		config := quick(broker.Addr, topic)
		config.Group = uniqueGroup(topic)
		config.Identity.Missing = inbox.PositionID
		commitAs(t, c, config.Group, topic, from)
		processor := &recorder{}
		r := consume(t, config, processor)
		end := endOffset(t, c, topic)
		eventually(t, "the end", func() bool { return committedBy(c, config.Group, topic, 0) == end })
		r.stop()
		return processor.distinct()
	}
	eventually(t, "compaction", func() bool {
		// A record closes the segment that is to be cleaned.
		produce(t, c, topic, 0, kafkago.Record{Key: kafkago.NewBytes([]byte("k0")), Value: kafkago.NewBytes([]byte("last"))})
		return read(0) < 50
	})
	for _, from := range []int64{1, 50, 199, 301, 399} {
		read(from)
	}
}

var groups atomic.Int64

func uniqueGroup(topic string) string {
	return topic + "-" + time.Now().Format("150405.000") + string(rune('a'+groups.Add(1)%26))
}

// K16: a record larger than every limit of ours comes through, between small ones.
func TestK16RecordOf20MBComesThrough(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 1, "max.message.bytes=33554432")
	c := client(t, broker.Addr)
	large := bytes.Repeat([]byte("onceward"), 20<<20/8)
	produce(t, c, topic, 0, record("m0"))
	big := record("m1")
	big.Value = kafkago.NewBytes(large)
	produce(t, c, topic, 0, big)
	produce(t, c, topic, 0, record("m2"))

	config := quick(broker.Addr, topic)
	config.Group = topic
	processor := &recorder{}
	r := consume(t, config, processor)
	eventually(t, "all", func() bool { return processor.distinct() == 3 })
	r.stop()
	assertInOrder(t, processor.settled(), 3)
	if !bytes.Equal(processor.settled()[1].Payload, large) {
		t.Error("the large payload is damaged")
	}
}

// K20: Apache Kafka keeps the session of a draining member by its commits alone, past SessionTimeout.
func TestK20ApacheKeepsTheSessionByCommits(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t)
	topic := stack.Topic(t, broker.Addr(), 1)
	c := client(t, broker.Addr())
	produce(t, c, topic, 0, numbered(0, 1)...)
	var calls atomic.Int32
	processor := &recorder{handle: func(ctx context.Context, _ inbox.Message) (inbox.Result, error) {
		calls.Add(1)
		select {
		case <-ctx.Done():
			return inbox.Result{}, ctx.Err()
		case <-time.After(5 * time.Second): // the work itself: more than three sessions long
			return processed, nil
		}
	}}
	config := quick(broker.Addr(), topic)
	config.Group = topic
	config.SessionTimeout, config.RebalanceTimeout, config.DrainTimeout = 1500*time.Millisecond, 20*time.Second, 15*time.Second
	first := consume(t, config, processor)
	eventually(t, "the handler", func() bool { return calls.Load() == 1 })
	second := consume(t, config, processor)
	second.await(kafka.EventJoined)
	eventually(t, "the offset", func() bool { return committedBy(c, topic, topic, 0) == 1 })
	first.stop()
	second.stop()
	if calls.Load() != 1 || len(first.seen(kafka.EventHandlersCancelled)) > 0 {
		t.Errorf("the handler ran %d times; cancelled: %v", calls.Load(), first.seen(kafka.EventHandlersCancelled))
	}
}

// K9: on Apache Kafka too, "the last" is pinned: what comes while the consumer is away is read.
func TestK9ApacheStartLast(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, 1)
	c := client(t, broker.Addr)
	produce(t, c, topic, 0, numbered(0, 10)...)
	config := quick(broker.Addr, topic)
	config.Group, config.StartAt = topic, kafka.StartLast
	processor := &recorder{}
	r := consume(t, config, processor)
	eventually(t, "the pin", func() bool { return committedBy(c, topic, topic, 0) == 10 })
	r.stop()
	produce(t, c, topic, 0, numbered(10, 13)...)
	r = consume(t, config, processor)
	eventually(t, "the new ones", func() bool { return committedBy(c, topic, topic, 0) == 13 })
	r.stop()
	if n := processor.distinct(); n != 3 {
		t.Errorf("%d messages, want 3", n)
	}
}
