package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// Each row of the failure table in doc.go.

func blockLane(c *outbox.RelayConfig) { c.Policy, c.Lanes = outbox.BlockLane, 1 }

func parkKey(c *outbox.RelayConfig) { c.Policy, c.Lanes = outbox.ParkKey, 1 }

// refuse has the broker refuse some IDs with err until it is changed.
func (f *fixture) refuse(err error, ids ...string) {
	f.broker.set(func(_ context.Context, e outbox.Event) error {
		if slices.Contains(ids, e.ID) {
			return err
		}
		return nil
	})
}

func TestUnavailableDestinationSpendsNoAttemptAndHoldsUpItsLanesOnly(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(fmt.Errorf("dial: %w", outbox.ErrUnavailable), "a1")
		f.append("a1", "a2", "b1")
		i := f.run(func(c *outbox.RelayConfig) { c.MaxAttempts, c.Lanes = 1, 16 })
		f.pass(5 * time.Minute)
		f.append("b2")
		f.pass(time.Second)
		f.wantSent("b1", "b2")
		f.wantStates(map[string]outbox.State{})
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "b1", "b2")
		i.stop()

		paused := f.noticesOf(outbox.NoticePaused)
		if len(paused) < 5 || len(paused) > 100 {
			f.Errorf("%d pauses in five minutes", len(paused))
		}
		for n, notice := range paused {
			if warns := notice.Level.String() == "WARN"; warns != (n == 0) {
				f.Errorf("pause %d has level %v", n, notice.Level)
			}
		}
		f.wantNotices(outbox.NoticeResumed, 1)
		f.wantSaved(func(c *outbox.RelayConfig) { c.Lanes = 16 })
	})
}

// What is acknowledged behind a gap is not published again, once the gap is closed.
func TestPausedLaneRemembersWhatWasAcknowledged(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(outbox.ErrUnavailable, "a1")
		f.append("a1", "b1", "a2", "c1", "-1")
		i := f.run(blockLane)
		f.pass(time.Minute)
		f.wantSent("b1", "c1", "-1")
		f.append("c2")
		f.pass(time.Minute)
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "b1", "c1", "c2", "-1")
		i.stop()
		f.wantSaved(blockLane)
	})
}

// What was set aside behind a gap stays what it is for the next owner, who reads it again.
func TestNextOwnerKnowsWhatWasSetAsideBehindAGap(t *testing.T) {
	for name, policy := range map[string]func(*outbox.RelayConfig){"BlockLane": blockLane, "ParkKey": parkKey} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.broker.set(func(_ context.Context, e outbox.Event) error {
					switch e.ID {
					case "a1":
						return outbox.ErrUnavailable
					case "b1", "-1":
						return outbox.ErrPermanent
					}
					return nil
				})
				i := f.run(policy)
				f.pass(time.Second)
				i.stop()
				delayed := event("c1")
				delayed.DeliverAfter = time.Now().Add(time.Hour)
				tx := f.store.Begin()
				f.appendIn(tx, event("a1"), event("b1"), event("-1"), delayed, event("d1"))
				f.store.Commit(tx)
				if err := f.store.Skip(f.Context(), "events", 5); err != nil {
					f.Fatal(err)
				}
				i = f.run(policy)
				f.pass(time.Minute)
				want := map[string]outbox.State{"b1": outbox.Dead, "-1": outbox.Dead, "c1": outbox.Delayed, "d1": outbox.Skipped}
				f.wantStates(want)
				i.stop()

				f.broker.set(nil)
				i = f.run(policy)
				f.pass(time.Minute)
				f.wantSent("a1")
				delete(want, "d1")
				f.wantStates(want)
				f.wantNotices(outbox.NoticeDead, 2)
				f.wantNotices(outbox.NoticeDelayed, 1)
				f.wantNotices(outbox.NoticeSkipped, 1)
				f.pass(time.Hour)
				f.wantSent("a1", "c1")
				i.stop()
				f.wantSaved(policy)
			})
		})
	}
}

func TestDeadlineOfACallIsAnOutage(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.set(func(ctx context.Context, e outbox.Event) error {
			<-ctx.Done()
			if e.ID == "a1" {
				return errors.New("i/o timeout") // Whatever it says, nobody knows.
			}
			return fmt.Errorf("write: %w", ctx.Err())
		})
		f.append("a1", "b1")
		i := f.run(func(c *outbox.RelayConfig) { c.MaxAttempts, c.PublishTimeout = 1, time.Second })
		f.pass(10 * time.Second)
		f.wantStates(map[string]outbox.State{})
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "b1")
		i.stop()
	})
}

// ownValue contains itself: fmt recurses into it until the stack overflows, which ends the process.
func ownValue() any {
	a := []any{nil}
	a[0] = a
	return a
}

func TestMisbehavingPublisherIsAnOutage(t *testing.T) {
	for name, misbehave := range map[string]func(events []outbox.Event) []error{
		"panics":             func([]outbox.Event) []error { panic("boom") },
		"panics with itself": func([]outbox.Event) []error { panic(ownValue()) },
		"ends its goroutine": func([]outbox.Event) []error {
			runtime.Goexit()
			return nil
		},
		"one result short":  func(events []outbox.Event) []error { return make([]error, len(events)-1) },
		"no results":        func([]outbox.Event) []error { return nil },
		"one too many":      func(events []outbox.Event) []error { return make([]error, len(events)+1) },
		"behind, of course": func(events []outbox.Event) []error { return []error{outbox.ErrBehind, outbox.ErrBehind}[:len(events)] },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.broker.whole = func(_ context.Context, events []outbox.Event) []error { return misbehave(events) }
				f.append("a1", "a2")
				i := f.run(func(c *outbox.RelayConfig) { c.MaxAttempts = 1 })
				f.pass(time.Minute)
				if n := len(f.noticesOf(outbox.NoticePaused)); n < 2 || n > 50 {
					f.Errorf("%d pauses", n)
				}
				f.wantStates(map[string]outbox.State{})
				f.broker.mu.Lock()
				f.broker.whole = nil
				f.broker.mu.Unlock()
				f.pass(time.Minute)
				f.wantSent("a1", "a2")
				i.stop()
				if name == "ends its goroutine" && !strings.Contains(f.logs.String(), "Goexit") {
					f.Errorf("the log says nothing of the end:\n%s", f.logs.String())
				}
				if name == "panics" && !strings.Contains(f.logs.String(), "boom") {
					f.Errorf("the log says nothing of the panic:\n%s", f.logs.String())
				}
			})
		})
	}
}

type brokenError struct{ text *string }

func (e *brokenError) Error() string { return *e.text }

func TestErrorThatCannotBeReadIsAnAttempt(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse((*brokenError)(nil), "a1")
		f.append("a1", "b1")
		i := f.run(func(c *outbox.RelayConfig) { c.MaxAttempts = 1 })
		f.pass(time.Second)
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead})
		f.wantSent("b1")
		i.stop()
	})
}

func TestPermanentErrorIsADeadLetterAtOnce(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(fmt.Errorf("too large: %w", outbox.ErrPermanent), "a1")
		f.append("a1", "a2", "b1")
		i := f.run(blockLane)
		f.pass(time.Second)
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead})
		f.wantSent("a2", "b1")
		notice := f.wantNotices(outbox.NoticeDead, 1)[0]
		if notice.ID != "a1" || notice.Attempts != 0 || !errors.Is(notice.Err, outbox.ErrPermanent) || notice.Level.String() != "ERROR" {
			f.Errorf("notice %+v", notice)
		}
		i.stop()
		f.wantSaved(blockLane)
	})
}

func TestFailedEventHoldsUpItsLaneUntilItIsPublished(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1", "a2", "b1", "a3")
		i := f.run(blockLane)
		f.pass(time.Second)
		f.append("b2", "c1")
		f.pass(500 * time.Millisecond)
		f.wantStates(map[string]outbox.State{"a1": outbox.Retrying})
		f.wantSent("b1")
		f.broker.set(nil)
		f.pass(time.Minute)
		f.wantSent("a1", "a2", "a3", "b1", "b2", "c1")
		f.wantStates(map[string]outbox.State{})
		i.stop()
		f.wantSaved(blockLane)
	})
}

func TestFailedEventIsDeadAfterMaxAttemptsAndOthersGoOn(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.refuse(errRefused, "a1")
		f.append("a1", "a2", "b1")
		i := f.run(blockLane, func(c *outbox.RelayConfig) { c.MaxAttempts = 4 })
		f.pass(5 * time.Minute)
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead})
		f.wantSent("a2", "b1")
		for n, notice := range f.wantNotices(outbox.NoticeRetrying, 3) {
			if notice.Attempts != n+1 || notice.ID != "a1" || !errors.Is(notice.Err, errRefused) {
				f.Errorf("notice %+v", notice)
			}
		}
		if s := i.Stats(); s.Dead != 1 || s.Retrying != 3 || s.Published != 2 {
			f.Errorf("stats %+v", s)
		}
		i.stop()
		f.wantSaved(blockLane)
	})
}

func TestEventsWithoutAKeyHoldUpNobody(t *testing.T) {
	for name, policy := range map[string]func(*outbox.RelayConfig){"BlockLane": blockLane, "ParkKey": parkKey} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.refuse(errRefused, "-1")
				f.append("-1", "-2", "a1")
				i := f.run(policy)
				f.pass(time.Second)
				f.append("-3", "a2")
				f.pass(time.Second)
				f.wantSent("-2", "-3", "a1", "a2")
				f.broker.set(nil)
				f.pass(time.Minute)
				f.wantSent("-2", "-3", "-1", "a1", "a2")
				i.stop()
				f.wantSaved(policy)
			})
		})
	}
}

func TestEventWithoutARouteIsAnAttempt(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1")
		config := f.config()
		config.MaxAttempts = 2
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		r := outbox.NewRelay(f.store, outbox.Routes(outbox.Route{Topics: []string{"refunds.*"}, Publisher: f.broker}), config)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		f.pass(time.Minute)
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead})
		if notice := f.wantNotices(outbox.NoticeDead, 1)[0]; notice.Attempts != 2 || !strings.Contains(notice.Err.Error(), `"orders"`) {
			f.Errorf("notice %+v", notice)
		}
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
}

func TestInvalidEventIsADeadLetterAtOnce(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1", "a2", "b1")
		f.store.log[0].Invalid = errors.New("headers are no array")
		i := f.run(parkKey)
		f.pass(time.Second)
		f.wantSent("b1")
		f.wantStates(map[string]outbox.State{"a1": outbox.Dead, "a2": outbox.Behind})
		i.stop()
	})
}
