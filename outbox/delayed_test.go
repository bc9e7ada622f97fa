package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

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
