package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/onceward/onceward/outbox"
)

// K12: a failed batch holds up later events of its keys only, also in later batches of the partition.
func TestK12FailureBlocksLaterEventsOfItsKeyOnly(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	s.reply = code(kafka.InvalidRecord, "a1")
	big := func(key, id string) outbox.Event {
		e := event("orders", key, id)
		e.Payload = make([]byte, 700) // a batch of its own
		return e
	}
	p := s.publisher(t, func(c *PublisherConfig) { c.MaxBatchBytes = 1024 })
	results := p.Publish(t.Context(), []outbox.Event{big("a", "a1"), big("b", "b1"), big("a", "a2"), big("", "n1"), big("b", "b2"), big("a", "a3")})
	if !errors.Is(results[0], outbox.ErrPermanent) {
		t.Errorf("a1: %v", results[0])
	}
	for i, want := range []error{nil, outbox.ErrBehind, nil, nil, outbox.ErrBehind} {
		if !errors.Is(results[i+1], want) {
			t.Errorf("event %d: %v, want %v", i+1, results[i+1], want)
		}
	}
	if got := fmt.Sprint(s.sent(0)); got != "[[a1] [b1] [n1] [b2]]" {
		t.Errorf("sent %v", got)
	}
}

// K12: a lost connection, silence and an ended context leave events unsent; the later ones of a key stand behind.
func TestK12NoAnswerIsNotSent(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]func(end context.CancelFunc, release chan struct{}) bool{
		"hung up": func(context.CancelFunc, chan struct{}) bool { return false },
		"context": func(end context.CancelFunc, release chan struct{}) bool { end(); <-release; return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, 1)
			s.partitions["orders"] = 2
			ctx, end := context.WithCancel(t.Context())
			defer end()
			release := make(chan struct{})
			s.request = func(int) bool { return request(end, release) }
			p := s.publisher(t)
			events := []outbox.Event{event("orders", "a", "a1"), event("orders", "a", "a2"), event("orders", "", "n1")}
			began := time.Now()
			results := p.Publish(ctx, events)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			close(release)
			if !errors.Is(results[0], outbox.ErrUnavailable) || !errors.Is(results[2], outbox.ErrUnavailable) {
				t.Errorf("results %v", results)
			}
			if !errors.Is(results[1], outbox.ErrBehind) {
				t.Errorf("the second of the key: %v", results[1])
			}

			// K18: the next attempt is made of the events anew, and works at once.
			s.change(func() { s.request = nil })
			for i, err := range p.Publish(t.Context(), events) {
				if err != nil {
					t.Errorf("event %d, the next time: %v", i, err)
				}
			}
			all := slices.Concat(append(s.sent(0), s.sent(1)...)...)
			slices.Sort(all)
			if fmt.Sprint(all) != "[a1 a2 n1]" {
				t.Errorf("the broker has %v", all)
			}
		})
	}
}

// K12: a broker that is gone fails what it leads; the others get theirs.
func TestK12OneBrokerDownOthersGoOn(t *testing.T) {
	t.Parallel()
	s := newScript(t, 2)
	s.partitions["orders"] = 2
	s.listeners[1].Close()
	p := s.publisher(t)
	var events []outbox.Event
	for i := range 20 {
		events = append(events, event("orders", fmt.Sprint("key", i), strconv.Itoa(i)))
	}
	ok, down := 0, 0
	for _, err := range p.Publish(t.Context(), events) {
		switch {
		case err == nil:
			ok++
		case errors.Is(err, outbox.ErrUnavailable) && strings.Contains(err.Error(), "refused"):
			down++
		default:
			t.Error(err)
		}
	}
	if ok == 0 || down == 0 {
		t.Errorf("%d published, %d not", ok, down)
	}
}

// K7: the broker's wait for its replicas is ours to set, all of them must answer, and it ends before our own wait does.
func TestK7ProduceCarriesItsTimeout(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	p := s.publisher(t)
	p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	p.Publish(ctx, []outbox.Event{event("orders", "a", "2")})
	if len(s.batches) != 2 {
		t.Fatalf("%d batches", len(s.batches))
	}
	if b := s.batches[0]; b.acks != -1 || b.timeout > replicaTimeout || b.timeout < replicaTimeout-2*time.Second {
		t.Errorf("acks %d, timeout %v", b.acks, b.timeout)
	}
	if b := s.batches[1]; b.timeout > 4*time.Second || b.timeout < time.Second {
		t.Errorf("with 8 s left, the timeout is %v", b.timeout)
	}
}

// K18: a batch is halved until the topic takes it; batches of a partition follow each other; the next call begins with the
// size that was found.
func TestK18BatchIsHalvedUntilItFits(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	s.reply = func(b scripted) produce.ResponsePartition {
		if len(b.ids) > 3 || slices.Contains(b.ids, "large") {
			return produce.ResponsePartition{ErrorCode: int16(kafka.MessageSizeTooLarge)}
		}
		return produce.ResponsePartition{}
	}
	p := s.publisher(t)
	events := make([]outbox.Event, 0, 16)
	for i := range 16 {
		events = append(events, event("orders", fmt.Sprint("key", i), fmt.Sprintf("%02d", i)))
	}
	events[5].ID = "large"
	for i, err := range p.Publish(t.Context(), events) {
		if i == 5 {
			if !errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("the large one: %v", err)
			}
		} else if err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	var order []string
	for _, ids := range s.sent(0) {
		if len(ids) <= 3 && !slices.Contains(ids, "large") {
			order = append(order, ids...)
		}
	}
	if !slices.IsSorted(order) || len(order) != 15 {
		t.Errorf("taken in the order %v", order)
	}
	before := len(s.sent(0))
	p.Publish(t.Context(), events[:3])
	if after := s.sent(0)[before:]; len(after[0]) > 3 {
		t.Errorf("the next call began with %v", after)
	}
}

// K18: records that the broker names are refused, and the rest of their batch goes again, in order.
func TestK18NamedRecordsAreRefusedAlone(t *testing.T) {
	t.Parallel()
	for name, named := range map[string]bool{"named": true, "not named": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, 1)
			s.partitions["orders"] = 1
			s.reply = func(b scripted) produce.ResponsePartition {
				at := slices.Index(b.ids, "b1")
				if at < 0 {
					return produce.ResponsePartition{}
				}
				answer := produce.ResponsePartition{ErrorCode: int16(kafka.InvalidRecord)}
				if named {
					answer.RecordErrors = []produce.ResponseError{{BatchIndex: int32(at), BatchIndexErrorMessage: "no key"}}
				}
				return answer
			}
			results := s.publisher(t).Publish(t.Context(), []outbox.Event{
				event("orders", "a", "a1"), event("orders", "b", "b1"), event("orders", "a", "a2"), event("orders", "b", "b2"), event("orders", "c", "c1"),
			})
			for i, want := range []error{nil, outbox.ErrPermanent, nil, outbox.ErrBehind, nil} {
				if !errors.Is(results[i], want) {
					t.Errorf("event %d: %v, want %v", i, results[i], want)
				}
			}
			var taken []string
			for _, ids := range s.sent(0) {
				if !slices.Contains(ids, "b1") {
					taken = append(taken, ids...)
				}
			}
			if fmt.Sprint(taken) != "[a1 a2 c1]" {
				t.Errorf("taken: %v", taken)
			}
			if named && !strings.Contains(results[1].Error(), "no key") {
				t.Errorf("the broker's reason is missing: %v", results[1])
			}
		})
	}
}

// K12: a client over its quota waits as long as the broker says, and no longer than its context.
func TestK12QuotaIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	s.throttle = 300
	p := s.publisher(t)
	p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})
	s.change(func() { s.throttle = 60_000 })
	began := time.Now()
	if err := p.Publish(t.Context(), []outbox.Event{event("orders", "a", "2")})[0]; err != nil {
		t.Error(err)
	}
	if waited := time.Since(began); waited < 250*time.Millisecond || waited > 10*time.Second {
		t.Errorf("waited %v", waited) // not for the broker's last word, which concerns the next call
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := p.Publish(ctx, []outbox.Event{event("orders", "a", "3")})[0]
	if !errors.Is(err, outbox.ErrUnavailable) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("error %v", err)
	}
}

// Events without a key fill a batch before they go to the next partition, and the next call goes on with another one.
func TestEventsWithoutAKeyAreSpreadInLargeBatches(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 4
	p := s.publisher(t, func(c *PublisherConfig) { c.MaxBatchBytes = 2048 })
	var events []outbox.Event
	for i := range 100 {
		events = append(events, event("orders", "", strconv.Itoa(i)))
	}
	for range 4 {
		for _, err := range p.Publish(t.Context(), events) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for partition := range 4 {
		batches := s.sent(partition)
		n := len(slices.Concat(batches...))
		if n < 50 || n/len(batches) < 15 {
			t.Errorf("partition %d has %d events in %d batches", partition, n, len(batches))
		}
	}
}
