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

func TestIdleRelayMakesTwoStatementsASecondAtMost(t *testing.T) {
	simulate(t, func(f *fixture) {
		var ids []string
		for n := range 100 {
			ids = append(ids, fmt.Sprintf("%c%d", 'a'+n%20, n))
		}
		f.append(ids...)
		lanes := func(c *outbox.RelayConfig) { c.Lanes = 16 }
		i := f.run(lanes)
		f.pass(time.Minute)
		f.wantSent(ids...)
		before := f.total()
		f.pass(10 * time.Minute)
		if n := f.total() - before; n > 1200 {
			f.Errorf("%d statements in ten minutes: %v", n, f.store.statements)
		}
		i.stop()
	})
}

func (f *fixture) total() (n int) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	for _, count := range f.store.statements {
		n += count
	}
	return n
}

func TestLookingForEventsSlowsDownAndStartsAnew(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run(func(c *outbox.RelayConfig) { c.Poll = 8 * time.Second })
		f.pass(time.Minute)
		took := func(wake func()) time.Duration {
			n, began := len(f.broker.ids()), time.Now()
			tx := f.store.Begin()
			f.appendIn(tx, event(fmt.Sprintf("a%d", n)))
			wake()
			f.pass(3 * time.Millisecond)
			f.store.Commit(tx)
			for len(f.broker.ids()) == n {
				f.pass(time.Millisecond)
			}
			return time.Since(began)
		}
		// Append wakes it.
		if d := took(func() {}); d > 15*time.Millisecond {
			f.Errorf("after a Publish in this process it took %v", d)
		}
		f.pass(time.Minute)
		// Another process does not, and then Wake does.
		f.store.signal = outbox.Signal{}
		f.pass(time.Minute)
		if d := took(func() {}); d > 9*time.Second {
			f.Errorf("without a signal it took %v", d)
		}
		f.pass(time.Minute)
		if d := took(i.Wake); d > 15*time.Millisecond {
			f.Errorf("after Wake it took %v", d)
		}
		i.stop()
	})
}

func TestDelayedEventIsPublishedWhenItIsDue(t *testing.T) {
	simulate(t, func(f *fixture) {
		tx := f.store.Begin()
		late := event("a1")
		late.DeliverAfter = time.Now().Add(90 * time.Second)
		f.appendIn(tx, late, event("a2"), event("b1"))
		f.store.Commit(tx)
		i := f.run(blockLane)
		f.pass(time.Second)
		f.wantSent("a2", "b1")
		f.wantStates(map[string]outbox.State{"a1": outbox.Delayed})
		f.pass(88 * time.Second)
		f.wantSent("a2", "b1")
		f.pass(1100 * time.Millisecond)
		f.wantSent("a2", "a1", "b1")
		f.wantStates(map[string]outbox.State{})
		f.wantNotices(outbox.NoticeDelayed, 1)
		i.stop()
		f.wantSaved(blockLane)
	})
}

func TestDelayedEventsAreDueInTheNextOwnerToo(t *testing.T) {
	simulate(t, func(f *fixture) {
		tx := f.store.Begin()
		late := event("a1")
		late.DeliverAfter = time.Now().Add(time.Minute)
		f.appendIn(tx, late)
		f.store.Commit(tx)
		i := f.run()
		f.pass(time.Second)
		i.stop()
		i = f.run(func(c *outbox.RelayConfig) { c.Poll = time.Hour })
		f.pass(57 * time.Second)
		f.wantSent()
		f.pass(3 * time.Second)
		f.wantSent("a1")
		i.stop()
	})
}

func TestDelayedEventThatFailsHoldsUpNobodyUnderBlockLane(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		tx := f.store.Begin()
		late := event("a1")
		late.DeliverAfter = time.Now().Add(time.Second)
		f.appendIn(tx, late)
		f.store.Commit(tx)
		i := f.run(blockLane, func(c *outbox.RelayConfig) { c.MaxAttempts = 1000 })
		f.pass(10 * time.Second)
		f.append("a2", "b1")
		f.pass(5 * time.Second)
		f.wantSent("a2", "b1")
		f.wantStates(map[string]outbox.State{"a1": outbox.Delayed})
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a2", "a1", "b1")
		i.stop()
		f.wantSaved(blockLane)
	})
}

// A delayed event takes its place in its key's line when it is due.
func TestDelayedEventOfAParkedKeyWaitsBehindIt(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		tx := f.store.Begin()
		late := event("a2")
		late.DeliverAfter = time.Now().Add(5 * time.Second)
		f.appendIn(tx, event("a1"), late)
		f.store.Commit(tx)
		i := f.run(parkKey, func(c *outbox.RelayConfig) { c.MaxAttempts = 1 })
		f.pass(10 * time.Second)
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead, "a2": outbox.Behind})
		f.broker.set(nil)
		if _, err := f.store.Redrive(f.Context(), "events", outbox.Filter{}); err != nil {
			f.Fatal(err)
		}
		f.pass(time.Minute)
		f.wantSent("a1", "a2")
		i.stop()
	})
}

// Saving is what leaves dead rows: once for 50 ms of work.
func TestPositionsAreSavedRarely(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		before := f.store.count("Settle")
		var ids []string
		for n := range 1000 {
			ids = append(ids, fmt.Sprintf("%c%d", 'a'+n%20, n))
			f.append(ids[n])
			f.pass(time.Millisecond)
		}
		f.pass(time.Second)
		f.wantSent(ids...)
		if n := f.store.count("Settle") - before; n > 45 {
			f.Errorf("%d settlements in about two seconds", n)
		}
		before = f.store.count("Settle")
		f.append("a2000")
		f.pass(10 * time.Millisecond)
		if n := f.store.count("Settle") - before; n != 1 {
			f.Errorf("after a pause %d settlements follow an event, want one at once", n)
		}
		i.stop()
	})
}

func TestLogIsPruned(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.store.pruned = outbox.Pruned{Events: 2500, Abandoned: []string{"gone"}}
		i := f.run()
		f.pass(11 * time.Second)
		if notice := f.wantNotices(outbox.NoticePruned, 1)[0]; notice.Count != 2500 {
			f.Errorf("notice %+v", notice)
		}
		if n := f.store.count("PruneLog"); n != 3 {
			f.Errorf("%d statements for 2,500 events", n)
		}
		f.pass(10 * time.Minute)
		if n := f.store.count("PruneLog"); n < 8 || n > 25 {
			f.Errorf("%d statements in ten minutes", n)
		}
		if notice := f.wantNotices(outbox.NoticeAbandoned, 1)[0]; notice.Relay != "gone" {
			f.Errorf("notice %+v", notice)
		}
		i.stop()
	})
}

// Lanes that stand apart meet again, and are read by one statement.
func TestLanesMeetAgain(t *testing.T) {
	simulate(t, func(f *fixture) {
		lanes := func(c *outbox.RelayConfig) { c.Lanes, c.MaxAttempts, c.BackoffMax = 16, 1000, time.Second }
		f.refuse(errRefused, "a0", "b0", "c0")
		i := f.run(lanes)
		var want []string
		for n := range 50 {
			var ids []string
			for key := range 20 {
				ids = append(ids, fmt.Sprintf("%c%d", 'a'+key, n))
			}
			want = append(want, ids...)
			f.append(ids...)
			f.pass(300 * time.Millisecond)
			if n == 20 {
				f.refuse(outbox.ErrUnavailable, "d30", "e30")
			}
		}
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent(want...)
		before := f.store.count("Read")
		f.pass(time.Minute)
		if n := f.store.count("Read") - before; n > 61 {
			f.Errorf("%d reads in an idle minute", n)
		}
		i.stop()
		f.wantSaved(lanes)
	})
}

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

func TestMemoryIsBounded(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var ids []string
		for n := range 500 {
			ids = append(ids, fmt.Sprintf("%c%d", 'a'+n%20, n))
		}
		f.append(ids...)
		var read atomic.Int32
		f.store.faults(func(_ context.Context, statement string) error {
			if statement == "Read" {
				read.Add(1)
			}
			return nil
		}, nil)
		i := f.run(func(c *outbox.RelayConfig) { c.Batch = 50 })
		f.pass(5 * time.Second)
		if n := read.Load(); n > 3 {
			f.Errorf("%d reads of 50 events, while nothing is acknowledged", n)
		}
		i.stop()
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

// Lanes that wait, for an event or for their destination, leave the memory to others.
func TestLanesThatWaitLeaveTheMemoryToOthers(t *testing.T) {
	for name, err := range map[string]error{"blocked": errRefused, "paused": outbox.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.refuse(err, "a0")
				var ids, others []string
				for n := range 400 {
					ids = append(ids, fmt.Sprintf("a%d", 2*n), fmt.Sprintf("a%d", 2*n+1), fmt.Sprintf("b%d", n))
					others = append(others, fmt.Sprintf("b%d", n))
				}
				f.append(ids...)
				small := func(c *outbox.RelayConfig) {
					c.Lanes, c.Batch, c.MaxAttempts = 16, 20, 1000
					c.BackoffMin, c.BackoffMax = time.Minute, time.Minute
				}
				i := f.run(small)
				f.pass(time.Second)
				f.wantSent(others...)
				f.broker.set(nil)
				f.pass(5 * time.Minute)
				f.wantSent(ids...)
				i.stop()
				f.wantSaved(small)
			})
		})
	}
}

// rarely: neither polls nor leases help out.
func rarely(c *outbox.RelayConfig) { c.Poll, c.Lease = time.Hour, time.Hour }

func TestLaneGoesOnAtOnceWhenWhatItWaitedForIsPublished(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		i := f.run(blockLane, rarely, func(c *outbox.RelayConfig) { c.MaxAttempts = 1000 })
		f.pass(time.Second)
		f.append("a1", "a2")
		f.pass(10 * time.Minute)
		f.broker.set(nil)
		for len(f.broker.ids()) == 0 {
			f.pass(10 * time.Millisecond)
		}
		f.pass(10 * time.Millisecond)
		f.wantSent("a1", "a2")
		i.stop()
	})
}

func TestAllThatIsDueIsPublishedAtOnce(t *testing.T) {
	simulate(t, func(f *fixture) {
		tx := f.store.Begin()
		var ids []string
		for n := range 100 {
			m := event(fmt.Sprintf("%c%d", 'a'+n, n))
			m.DeliverAfter = time.Now().Add(10 * time.Minute)
			f.appendIn(tx, m)
			ids = append(ids, m.ID)
		}
		f.store.Commit(tx)
		i := f.run(rarely, func(c *outbox.RelayConfig) { c.Batch = 10 })
		f.pass(10*time.Minute + 100*time.Millisecond)
		f.wantSent(ids...)
		i.stop()
	})
}

func TestWhatComesBehindALineThatIsPublishedFollowsAtOnce(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1", "a2")
		i := f.run(parkKey, rarely, func(c *outbox.RelayConfig) { c.MaxAttempts = 1000 })
		f.pass(time.Minute)
		f.broker.set(func(ctx context.Context, _ outbox.Event) error {
			pause(ctx, time.Second)
			return nil
		})
		for f.store.states("events")["a1"] == outbox.Retrying && len(f.broker.ids()) == 0 {
			f.pass(100 * time.Millisecond)
		}
		f.append("a3") // while a2 is under way
		f.pass(3 * time.Second)
		f.wantSent("a1", "a2", "a3")
		f.wantStates(map[string]outbox.State{})
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
