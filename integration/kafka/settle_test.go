package kafka_test

import (
	"context"
	"errors"
	"slices"
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

// X1: a delivery settles once, with a deadline, and a failed settle is never a handler error.
func TestX1FailedCommitIsNoHandlerError(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 10)...)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorLoadInProgress, Count: 3})

	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	awaitCommitted(t, c, "orders", 0, 10)
	r.stop()
	if got := len(processor.settled()); got != 10 {
		t.Errorf("10 messages were handled %d times", got)
	}
	if len(r.seen(kafka.EventCommitFailed)) == 0 {
		t.Error("the failed commits were silent")
	}
}

// X2: a duplicate and a parked message settle like a processed one.
func TestX2DuplicateAndParkedMoveTheOffset(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 9)...)
	outcomes := []inbox.Outcome{inbox.Duplicate, inbox.Parked, inbox.Processed}
	n := 0
	r := consume(t, quick(addr), &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		n++
		return inbox.Result{Outcome: outcomes[n%3]}, nil
	}})
	awaitCommitted(t, c, "orders", 0, 9)
	r.stop()
}

// X3: while the first copy of a message still runs, the duplicate is not settled but tried again after a delay.
func TestX3UndecidedDuplicateIsTriedAgainAndNotSettled(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 3)...)
	var tries atomic.Int32
	var first, second time.Time
	processor := &recorder{handle: func(_ context.Context, m inbox.Message) (inbox.Result, error) {
		if m.ID != "m1" {
			return processed, nil
		}
		switch tries.Add(1) {
		case 1:
			first = time.Now()
			return inbox.Result{Outcome: inbox.Failed, RetryAfter: 600 * time.Millisecond}, nil
		default:
			second = time.Now()
			return inbox.Result{Outcome: inbox.Duplicate}, nil
		}
	}}
	r := consume(t, quick(addr), processor)
	eventually(t, "the first try", func() bool { return tries.Load() == 1 })
	awaitCommitted(t, c, "orders", 0, 1)
	if tries.Load() == 1 && processor.distinct() > 1 {
		t.Error("a message overtook the undecided one")
	}
	awaitCommitted(t, c, "orders", 0, 3)
	r.stop()
	if waited := second.Sub(first); waited < 600*time.Millisecond {
		t.Errorf("tried again after %v, want 600ms", waited)
	}
}

// X5: an outage of the database settles nothing, spends nothing and stops the fetching.
func TestX5OutageStopsFetchingAndLosesNothing(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	for i := range 100 {
		large := record("m" + strconv.Itoa(i))
		large.Value = kafkago.NewBytes(make([]byte, 10<<10))
		produce(t, c, "orders", 0, large)
	}
	fetches := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Observe: true, Count: -1})
	var down atomic.Bool
	var calls atomic.Int32
	down.Store(true)
	processor := &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		calls.Add(1)
		if down.Load() {
			return inbox.Result{}, errors.New("connection refused")
		}
		return processed, nil
	}}
	config := quick(addr)
	config.FetchMaxBytes = 16 << 10
	r := consume(t, config, processor)
	r.await(kafka.EventPaused)
	eventually(t, "more tries", func() bool { return calls.Load() >= 4 })
	if n := fetches.Hits(); n > 3 {
		t.Errorf("%d fetches during the outage, want at most one ahead", n)
	}
	if got := committed(t, c, "orders", 0); got > 0 {
		t.Errorf("offset %d was committed during the outage", got)
	}
	down.Store(false)
	awaitCommitted(t, c, "orders", 0, 100)
	r.await(kafka.EventResumed)
	r.stop()
	assertInOrder(t, processor.settled(), 100)
}

// K4: the database commits first, the offset follows; a crash between them is a duplicate that still moves the offset.
func TestK4CrashBeforeTheOffsetIsADuplicateThatMovesIt(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 20)...)
	noCommit := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownMemberID, Count: -1})
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	eventually(t, "all handled", func() bool { return processor.distinct() == 20 })
	r.await(kafka.EventCommitDropped)
	r.stop()
	if got := committed(t, c, "orders", 0); got > 0 {
		t.Fatalf("offset %d was committed", got)
	}
	noCommit.Remove()

	r = consume(t, quick(addr), processor)
	awaitCommitted(t, c, "orders", 0, 20)
	r.stop()
	if effects := processor.distinct(); effects != 20 {
		t.Errorf("%d effects, want 20", effects)
	}
}

// K10: offsets are committed by request and answer, never in the background where errors are swallowed.
func TestK10EveryRefusedCommitIsReported(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	refused := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownServerError, Count: 4})
	r := consume(t, quick(addr), &recorder{})
	awaitCommitted(t, c, "orders", 0, 1)
	r.stop()
	if got, want := len(r.seen(kafka.EventCommitFailed)), refused.Hits(); got != want {
		t.Errorf("%d of %d refused commits were reported", got, want)
	}
}

// X7: what happens without anybody asking is an event with a place, a count and a cause, without key and payload.
func TestX7StalledPartitionSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 5)...)
	release := make(chan struct{})
	processor := &recorder{handle: func(_ context.Context, m inbox.Message) (inbox.Result, error) {
		if m.ID == "m2" {
			<-release
		}
		return processed, nil
	}}
	config := quick(addr)
	config.StalledAfter = 200 * time.Millisecond
	r := consume(t, config, processor)
	event := r.await(kafka.EventStalled)
	close(release)
	awaitCommitted(t, c, "orders", 0, 5)
	r.stop()
	if event.Message.Position == "" || event.Count != 5 || event.Err == nil || event.Duration < config.StalledAfter {
		t.Errorf("event %+v names no place, lag, cause or duration", event)
	}
	for _, kind := range []inbox.EventKind{kafka.EventJoined, kafka.EventStalled, kafka.EventDrained} {
		events := r.seen(kind)
		if len(events) == 0 {
			t.Errorf("no event %s", kind)
		}
		for _, e := range events {
			if e.Message.Key != nil || e.Message.Payload != nil || e.Message.Headers != nil || e.Consumer != "billing" {
				t.Errorf("event %+v", e)
			}
		}
	}
}

// assertInOrder demands m0 … m<n-1>, in order, once each.
func assertInOrder(t *testing.T, messages []inbox.Message, n int) {
	t.Helper()
	var got, want []string
	for _, m := range messages {
		got = append(got, m.ID)
	}
	for _, r := range numbered(0, n) {
		want = append(want, string(r.Headers[0].Value))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
