package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func TestCallsOfDisjointLanesOverlap(t *testing.T) {
	simulate(t, func(f *fixture) {
		var now, most atomic.Int32
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			for n := now.Add(1); ; {
				if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
					break
				}
			}
			pause(ctx, 10*time.Millisecond)
			now.Add(-1)
			return nil
		}
		var ids []string
		for n := range 200 {
			ids = append(ids, fmt.Sprintf("%c%d", 'a'+n%20, n))
		}
		f.append(ids...)
		i := f.run(func(c *outbox.RelayConfig) { c.Lanes = 16 })
		f.pass(10 * time.Second)
		f.wantSent(ids...)
		if most.Load() != 4 {
			f.Errorf("%d calls at a time", most.Load())
		}
		i.stop()
	})
}

// One destination that hangs holds up its own lanes, and no others.
func TestSlowCallDoesNotHoldUpOtherLanes(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.on = func(ctx context.Context, e outbox.Event) error {
			if e.Key[0] == 'a' {
				pause(ctx, 20*time.Second)
			}
			return nil
		}
		var ids, others []string
		for n := range 400 { // many times what is read ahead
			ids = append(ids, fmt.Sprintf("a%d", 2*n), fmt.Sprintf("a%d", 2*n+1), fmt.Sprintf("b%d", n))
			others = append(others, fmt.Sprintf("b%d", n))
		}
		f.append(ids...)
		i := f.run(func(c *outbox.RelayConfig) { c.Lanes, c.Batch = 16, 20 })
		f.pass(10 * time.Second)
		f.wantSent(others...)
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent(ids...)
		i.stop()
		f.wantSaved(func(c *outbox.RelayConfig) { c.Lanes = 16 })
	})
}

func TestHotKeyIsPublishedInOrderInLargeCalls(t *testing.T) {
	simulate(t, func(f *fixture) {
		var ids []string
		for n := range 1000 {
			ids = append(ids, fmt.Sprintf("a%d", n))
		}
		f.append(ids...)
		i := f.run(func(c *outbox.RelayConfig) { c.Batch = 100 })
		f.pass(5 * time.Second)
		if !slices.Equal(f.broker.ids(), ids) {
			f.Errorf("sent %q", f.broker.ids())
		}
		if n := len(f.broker.calls); n > 25 {
			f.Errorf("%d calls for 1,000 events", n)
		}
		i.stop()
	})
}

// What was read ahead for a slow call and then forgotten was not handled.
func TestPositionEndsWhereASlowCallEnds(t *testing.T) {
	simulate(t, func(f *fixture) {
		var calls atomic.Int32
		f.broker.whole = func(ctx context.Context, events []outbox.Event) []error {
			results := make([]error, len(events))
			slow := events[0].Key[0] == 'a'
			if slow {
				pause(ctx, 20*time.Second)
			}
			for i, e := range events {
				if slow && calls.Load() > 0 {
					results[i] = outbox.ErrUnavailable
					continue
				}
				f.broker.take(e)
			}
			if slow {
				calls.Add(1)
			}
			return results
		}
		var ids []string
		for n := range 60 {
			ids = append(ids, fmt.Sprintf("a%d", 2*n), fmt.Sprintf("a%d", 2*n+1), fmt.Sprintf("b%d", n))
		}
		f.append(ids...)
		small := func(c *outbox.RelayConfig) { c.Lanes, c.Batch = 16, 20 }
		i := f.run(small)
		f.pass(30 * time.Second) // The first call has ended, the second one has not.
		i.stop()
		f.broker.mu.Lock()
		f.broker.whole = nil
		f.broker.mu.Unlock()
		i = f.run(small)
		f.pass(10 * time.Second)
		f.wantSent(ids...)
		i.stop()
	})
}

func TestBytesBoundACall(t *testing.T) {
	simulate(t, func(f *fixture) {
		tx := f.store.Begin()
		for n := range 20 {
			m := event(fmt.Sprintf("a%d", n))
			m.Payload = make([]byte, 999)
			f.appendIn(tx, m)
		}
		f.store.Commit(tx)
		i := f.run(func(c *outbox.RelayConfig) { c.BatchBytes = 6000 })
		f.pass(time.Second)
		if n := len(f.broker.ids()); n != 20 {
			f.Errorf("%d were sent", n)
		}
		for _, call := range f.broker.calls {
			if len(call) > 3 {
				f.Errorf("a call has %d kB, more than half of a batch", len(call))
			}
		}
		i.stop()
	})
}
