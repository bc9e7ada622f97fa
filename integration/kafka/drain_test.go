package kafka_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
)

// X4: losing the lease on a delivery cancels the handler's context, and the message is delivered again.
func TestX4RebalanceCancelsHandlers(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	var tries atomic.Int32
	var cause atomic.Value
	processor := &recorder{handle: func(ctx context.Context, _ inbox.Message) (inbox.Result, error) {
		if tries.Add(1) == 1 {
			<-ctx.Done()
			cause.Store(context.Cause(ctx).Error())
			return inbox.Result{}, ctx.Err()
		}
		return processed, nil
	}}
	config := quick(addr)
	config.DrainTimeout = 300 * time.Millisecond
	first := consume(t, config, processor)
	eventually(t, "the handler", func() bool { return tries.Load() == 1 })
	second := consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, 1)
	if event := first.await(kafka.EventHandlersCancelled); event.Count != 1 {
		t.Errorf("event %+v, want one message", event)
	}
	if got, _ := cause.Load().(string); got == "" {
		t.Error("the context ended without a cause")
	}
	first.stop()
	second.stop()
}

// X6: shutdown lets the running handler finish, settles it, and begins no other.
func TestX6ShutdownFinishesWhatRunsAndBeginsNothing(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	const total = 3000
	produce(t, c, "orders", 0, numbered(0, total)...)
	running := make(chan struct{})
	var calls atomic.Int32
	processor := &recorder{handle: func(ctx context.Context, _ inbox.Message) (inbox.Result, error) {
		if calls.Add(1) == 1 {
			close(running)
		}
		<-time.After(time.Millisecond) // the work
		return processed, ctx.Err()
	}}
	r := consume(t, quick(addr), processor)
	<-running
	r.stop()
	done := int64(len(processor.settled()))
	if done == 0 || done > total/2 {
		t.Fatalf("%d messages were handled, want the call that ran and no other", done)
	}
	if got := committed(t, c, "orders", 0); got != done {
		t.Errorf("committed %d of %d", got, done)
	}
	if cancelled := r.seen(kafka.EventHandlersCancelled); len(cancelled) > 0 {
		t.Errorf("event %+v", cancelled)
	}
}

// X6: a handler that needs too long is cancelled, not settled, and Consume still returns cleanly.
func TestX6ShutdownAbortsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 3)...)
	var calls atomic.Int32
	processor := &recorder{handle: func(ctx context.Context, m inbox.Message) (inbox.Result, error) {
		if m.ID == "m0" {
			return processed, nil
		}
		calls.Add(1)
		<-ctx.Done()
		return inbox.Result{}, ctx.Err()
	}}
	config := quick(addr)
	config.DrainTimeout = 200 * time.Millisecond
	r := consume(t, config, processor)
	eventually(t, "the slow handler", func() bool { return calls.Load() == 1 })
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if got := committed(t, c, "orders", 0); got != 1 {
		t.Errorf("committed %d, want what was decided before: 1", got)
	}
}

// X6: a handler that ignores its context can't hang the shutdown.
func TestX6ShutdownLeavesDeafHandlersBehind(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	produce(t, client(t, addr), "orders", 0, numbered(0, 1)...)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var calls atomic.Int32
	config := quick(addr)
	config.DrainTimeout = 100 * time.Millisecond
	r := consume(t, config, &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		calls.Add(1)
		<-release
		return processed, nil
	}})
	eventually(t, "the handler", func() bool { return calls.Load() == 1 })
	r.cancel()
	if err := r.result(); err == nil {
		t.Error("Consume returned nil")
	}
	if event := r.await(kafka.EventAbandoned); event.Count != 1 {
		t.Errorf("event %+v", event)
	}
}

// X6: a broker that has gone can't hang the shutdown either.
func TestX6ShutdownWithoutABroker(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 2)
	produce(t, client(t, addr), "orders", 0, numbered(0, 1)...)
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	eventually(t, "the message", func() bool { return processor.distinct() == 1 })
	cluster.Close()
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
}

// X6: every goroutine has an owner that waits for it.
func TestX6NoGoroutineIsLeft(t *testing.T) { // not parallel: it looks at all goroutines
	_, addr := fakeCluster(t, 4)
	t.Run("", func(t *testing.T) { // its client ends with it
		c := client(t, addr)
		for p := range 4 {
			produce(t, c, "orders", p, numbered(p*100, p*100+100)...)
		}
	})
	for range 3 {
		t.Run("", func(t *testing.T) {
			noLeaks(t)
			config := quick(addr)
			config.KeyParallelism = 3
			processor := &recorder{}
			first := consume(t, config, processor)
			eventually(t, "some messages", func() bool { return len(first.seen(kafka.EventJoined)) > 0 })
			second := consume(t, config, processor)
			second.await(kafka.EventJoined)
			first.stop()
			second.stop()
		})
	}
}

// K1: nothing is handed out after the end of its generation.
func TestK1NothingIsHandedOutAfterTheGenerationEnded(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 4)
	c := client(t, addr)
	stop := make(chan struct{})
	produced := make(chan int)
	go func() {
		n := 0
		defer func() { produced <- n }()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				produce(t, c, "orders", n/20%4, numbered(n, n+20)...)
				n += 20
			}
		}
	}()

	effects := &recorder{}
	storm := func(name string) *running {
		// open is whether this member has a generation, by its own events. OnEvent is synchronous: Joined comes before
		// the first call of the inbox and Drained after the last.
		var open atomic.Bool
		config := quick(addr)
		config.OnEvent = func(_ context.Context, e inbox.Event) {
			switch e.Kind {
			case kafka.EventJoined:
				open.Store(true)
			case kafka.EventDrained:
				open.Store(false)
			default:
			}
		}
		return consume(t, config, &watcher{recorder: effects, enter: func() {
			if !open.Load() {
				t.Errorf("%s: a message was handed out without a generation", name)
			}
		}})
	}
	base := storm("base")
	for range 6 {
		guest := storm("guest")
		guest.await(kafka.EventJoined)
		before := len(base.seen(kafka.EventJoined))
		guest.stop()
		eventually(t, "the next generation", func() bool { return len(base.seen(kafka.EventJoined)) > before })
	}
	close(stop)
	total := <-produced
	eventually(t, "all messages", func() bool { return effects.distinct() == total })
	base.stop()
}

// watcher looks at every call of a recorder.
type watcher struct {
	*recorder
	enter func()
}

func (w *watcher) Process(ctx context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	w.enter()
	defer w.enter()
	return w.recorder.Process(ctx, messages)
}

// K20: commits keep the session while a rebalance waits for a handler, past SessionTimeout.
func TestK20DrainingKeepsTheSession(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	var calls atomic.Int32
	processor := &recorder{handle: func(ctx context.Context, _ inbox.Message) (inbox.Result, error) {
		calls.Add(1)
		select {
		case <-ctx.Done():
			return inbox.Result{}, ctx.Err()
		case <-time.After(3 * time.Second): // the work itself: three sessions long
			return processed, nil
		}
	}}
	config := quick(addr)
	config.SessionTimeout, config.DrainTimeout = time.Second, 8*time.Second
	first := consume(t, config, processor)
	eventually(t, "the handler", func() bool { return calls.Load() == 1 })
	second := consume(t, config, processor)
	second.await(kafka.EventJoined)
	awaitCommitted(t, c, "orders", 0, 1)
	first.stop()
	second.stop()
	if calls.Load() != 1 || len(first.seen(kafka.EventHandlersCancelled)) > 0 {
		t.Errorf("the handler ran %d times, events %v", calls.Load(), first.seen(kafka.EventHandlersCancelled))
	}
}

// K20: a drain whose coordinator stays unreachable ends after DrainTimeout at the latest, however often it is told so; and
// every commit that fails to keep the session is an event (X7).
func TestK20DrainEndsWhileTheCoordinatorStaysUnreachable(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 1)...)
	var calls atomic.Int32
	config := quick(addr)
	config.SessionTimeout, config.HeartbeatInterval, config.DrainTimeout = 6*time.Second, 50*time.Millisecond, time.Second
	r := consume(t, config, &recorder{handle: func(ctx context.Context, m inbox.Message) (inbox.Result, error) {
		if m.ID == "m0" || calls.Add(1) > 1 {
			return processed, nil
		}
		<-ctx.Done()
		return inbox.Result{}, ctx.Err()
	}})
	awaitCommitted(t, c, "orders", 0, 1) // the position that keeps the session
	produce(t, c, "orders", 0, numbered(1, 2)...)
	eventually(t, "the handler", func() bool { return calls.Load() == 1 })
	away := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat, kmsg.OffsetCommit}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	began := time.Now()
	event := r.await(kafka.EventHandlersCancelled)
	if took := time.Since(began); took > config.DrainTimeout+2*time.Second || event.Count != 1 {
		t.Errorf("event %+v after %v", event, took)
	}
	failed := r.seen(kafka.EventCommitFailed)
	if len(failed) == 0 || failed[0].Err == nil || failed[0].Count != 1 {
		t.Errorf("events %+v of commits that failed to keep the session", failed)
	}
	away.Remove()
	awaitCommitted(t, c, "orders", 0, 2)
	r.stop()
}

// K20: HeartbeatInterval bounds how soon a member notices a rebalance.
func TestK20HeartbeatIntervalBoundsTheNotice(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 2)
	config := quick(addr)
	config.HeartbeatInterval = 50 * time.Millisecond
	first := consume(t, config, &recorder{})
	first.await(kafka.EventJoined)
	began := time.Now()
	second := consume(t, config, &recorder{})
	first.await(kafka.EventDrained)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the rebalance was noticed after %v", took)
	}
	first.stop()
	second.stop()
}
