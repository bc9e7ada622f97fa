package outbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func TestEventsWaitBehindAParkedKeyInOrder(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1", "a2", "b1", "-1")
		i := f.run(parkKey, func(c *outbox.RelayConfig) { c.MaxAttempts = 3 })
		f.pass(time.Minute)
		f.append("a3", "b2")
		f.pass(time.Second)
		f.wantSent("b1", "b2", "-1")
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead, "a2": outbox.Behind, "a3": outbox.Behind})
		f.wantNotices(outbox.NoticeBehind, 2)

		f.broker.set(nil)
		if _, err := f.store.Redrive(f.Context(), "events", outbox.Filter{}); err != nil {
			f.Fatal(err)
		}
		f.append("a4")
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "a3", "a4", "b1", "b2", "-1")
		f.append("a5")
		f.pass(time.Second)
		f.wantSent("a1", "a2", "a3", "a4", "a5", "b1", "b2", "-1")
		f.wantStates(map[string]outbox.State{})
		i.stop()
		f.wantSaved(parkKey)
	})
}

// The second of a key fails after the first was published: the others stay behind it.
func TestNextOfAParkedKeyMayFailAsWell(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1", "a2")
		f.append("a1", "a2", "a3")
		i := f.run(parkKey, func(c *outbox.RelayConfig) { c.MaxAttempts = 1000 })
		f.pass(time.Minute)
		f.refuse(errRefused, "a2")
		f.pass(time.Minute)
		f.wantSent("a1")
		f.wantStates(map[string]outbox.State{"a2": outbox.Retrying, "a3": outbox.Behind})
		f.append("a4")
		f.pass(time.Minute)
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "a3", "a4")
		i.stop()
		f.wantSaved(parkKey)
	})
}

// Calls that are too small for a whole line: while its first fails, the others are not sent.
func TestLineOfAParkedKeyIsLongerThanACall(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1", "a2", "a3", "a4")
		small := func(c *outbox.RelayConfig) { c.MaxAttempts, c.Batch, c.BackoffMax = 1000, 2, time.Second }
		i := f.run(parkKey, small)
		f.pass(time.Minute)
		f.wantSent()
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "a3", "a4")
		i.stop()
		f.wantSaved(parkKey)
	})
}

// A dead letter was changed in the log, and fails once more: it still has its place in the line.
func TestDeadLetterThatWasChangedKeepsItsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		refused error
		batch   int // To the publisher, one of another topic is in no line with the rest of a call.
		change  func(e *outbox.Event)
	}{
		"another topic, dead at once":        {outbox.ErrPermanent, 1, func(e *outbox.Event) { e.Topic = "orders.eu" }},
		"another topic, dead after attempts": {errRefused, 1, func(e *outbox.Event) { e.Topic = "orders.eu" }},
		"headers that are none":              {outbox.ErrPermanent, 100, func(e *outbox.Event) { e.Invalid = errors.New("no headers") }},
		"deleted":                            {outbox.ErrPermanent, 100, func(e *outbox.Event) { e.Key, e.Invalid = nil, errors.New("deleted") }},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				redrive := func() {
					f.Helper()
					if _, err := f.store.Redrive(f.Context(), "events", outbox.Filter{}); err != nil {
						f.Fatal(err)
					}
					f.pass(10 * time.Minute)
				}
				config := func(r *outbox.RelayConfig) {
					parkKey(r)
					r.Batch = c.batch
				}
				f.refuse(c.refused, "a1")
				f.append("a1", "a2", "a3")
				i := f.run(config)
				f.pass(10 * time.Minute)
				f.store.mend(1, c.change)
				redrive()
				f.wantStates(map[string]outbox.State{"a1": outbox.Dead, "a2": outbox.Behind, "a3": outbox.Behind})
				f.broker.set(nil)
				f.store.mend(1, func(e *outbox.Event) { e.Message, e.Invalid = event("a1"), nil })
				redrive()
				f.wantSent("a1", "a2", "a3")
				f.wantStates(map[string]outbox.State{})
				i.stop()
				f.wantSaved(config)
			})
		})
	}
}

func TestParkedKeysAreKnownToTheNextOwner(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1")
		i := f.run(parkKey)
		f.pass(time.Second)
		i.stop()
		f.append("a2", "b1")
		i = f.run(parkKey)
		f.pass(time.Second)
		f.wantSent("b1")
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "b1")
		i.stop()
	})
}
