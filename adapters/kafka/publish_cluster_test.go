package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/onceward/onceward/outbox"
)

// K12: a topic that can't be written to spends attempts and says why; a name that can't be one is never accepted and nobody is asked.
func TestK12TopicsThatCantBeWritten(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	s.topicError = map[string]kafka.Error{"secret": kafka.TopicAuthorizationFailed, "young": kafka.LeaderNotAvailable}
	results := s.publisher(t).Publish(t.Context(), []outbox.Event{
		event("missing", "a", "1"), event("missing", "a", "2"), event("missing", "", "3"), event("missing", "", "4"),
		event("secret", "a", "5"), event("young", "a", "6"),
		event("no topic", "a", "7"), event(strings.Repeat("x", 70_000), "a", "8"), event("..", "", "9"), event("", "", "10"),
		event("orders", "a", "11"),
	})
	for i, want := range []string{
		`topic "missing" does not exist`, "behind", `topic "missing" does not exist`, `topic "missing" does not exist`,
		`writing topic "secret" is not allowed`, `topic "young": destination is unavailable`,
		"can't be the name of a topic", "can't be the name of a topic", "can't be the name of a topic", "can't be the name of a topic",
	} {
		if results[i] == nil || !strings.Contains(results[i].Error(), want) {
			t.Errorf("event %d: %v, want %q", i, results[i], want)
		}
		if permanent := errors.Is(results[i], outbox.ErrPermanent); permanent != (i >= 6) {
			t.Errorf("event %d: permanent is %v", i, permanent)
		}
	}
	if results[10] != nil {
		t.Errorf("the good one: %v", results[10])
	}
}

// Topics are asked for once, again when their picture is old, and at once after a failure.
func TestLayoutIsKeptAndRenewed(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	p := s.publisher(t)
	send := func() error { return p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})[0] }
	for range 5 {
		if err := send(); err != nil {
			t.Fatal(err)
		}
	}
	if s.asked != 1 {
		t.Errorf("asked %d times", s.asked)
	}
	s.change(func() { s.reply = code(kafka.NotLeaderForPartition, "1") })
	_ = send()
	s.change(func() { s.reply = nil; s.partitions["orders"] = 3 })
	if err := send(); err != nil || s.asked != 2 {
		t.Errorf("%v, asked %d times", err, s.asked)
	}
	p.cluster.mu.Lock()
	l := p.cluster.layouts["orders"]
	l.asked = l.asked.Add(-layoutAge)
	p.cluster.mu.Unlock()
	s.change(func() { s.partitions["orders"] = 4 })
	if err := send(); err != nil || s.asked != 3 {
		t.Errorf("%v, asked %d times", err, s.asked)
	}
	if got := len(p.cluster.layouts["orders"].all); got != 4 {
		t.Errorf("knows %d partitions", got)
	}
}

// A logger that panics fails no event: neither where a topic's picture is taken nor where a batch is settled, on a
// goroutine that nobody but the process would end with.
func TestPanicOfALoggerFailsNoEvent(t *testing.T) {
	t.Parallel()
	s := newScript(t, 2)
	s.partitions["orders"] = 2
	s.reply = func(b scripted) produce.ResponsePartition {
		if len(b.ids) > 3 {
			return produce.ResponsePartition{ErrorCode: int16(kafka.MessageSizeTooLarge)}
		}
		return produce.ResponsePartition{}
	}
	p := s.publisher(t, func(c *PublisherConfig) { c.Logger = slog.New(panickingHandler{}) })
	var events []outbox.Event
	for i := range 20 {
		events = append(events, event("orders", fmt.Sprint("key", i), strconv.Itoa(i)))
	}
	for range 2 {
		for i, err := range p.Publish(t.Context(), events) {
			if err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
		s.change(func() { s.partitions["orders"] = 4 })
		p.cluster.layouts["orders"].stale.Store(true)
	}
}

// Brokers that are named in the config may all be gone later: the others are asked.
func TestDiscoveredBrokersAreAskedToo(t *testing.T) {
	t.Parallel()
	s := newScript(t, 2)
	s.partitions["orders"] = 2
	p := s.publisher(t)
	inOne := event("orders", "a", "1")
	for i := 0; p.Publish(t.Context(), []outbox.Event{inOne})[0] != nil || len(s.sent(1)) == 0; i++ {
		inOne.Key = []byte(strconv.Itoa(i))
	}
	s.listeners[0].Close()
	p.cluster.seeds.transport.CloseIdleConnections()
	s.change(func() { s.partitions["orders"] = 4; s.reply = code(kafka.NotLeaderForPartition, "1") })
	if err := p.Publish(t.Context(), []outbox.Event{inOne})[0]; !errors.Is(err, outbox.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	before := s.asked
	p.Publish(t.Context(), []outbox.Event{inOne})
	if s.asked != before+1 || len(p.cluster.layouts["orders"].all) != 4 {
		t.Errorf("asked %d times", s.asked-before)
	}
}

// K11: the partition of a key is the one that Java's producer takes. The hashes are those of the tests of Kafka's own murmur2.
func TestK11PartitionIsJavas(t *testing.T) {
	t.Parallel()
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		for _, partitions := range []int{1, 2, 3, 7, 16, 1000} {
			l := &layout{}
			for i := range partitions {
				l.all = append(l.all, i)
			}
			if got, want := l.partitionOf([]byte(key)), int(hash&0x7fffffff)%partitions; got != want {
				t.Errorf("%s of %d: partition %d, want %d", key, partitions, got, want)
			}
		}
	}
}
