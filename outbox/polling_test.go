package outbox_test

import (
	"context"
	"fmt"
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
