package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

func TestUnavailableStoreIsWaitedFor(t *testing.T) {
	simulate(t, func(f *fixture) {
		out := func(context.Context, string) error { return fmt.Errorf("dial: %w", idempotency.ErrUnavailable) }
		f.append("a1")
		f.store.faults(out, nil)
		i := f.run(func(c *outbox.RelayConfig) { c.BackoffMax = 5 * time.Second })
		f.pass(time.Minute)
		f.store.faults(nil, nil)
		f.pass(10 * time.Second)
		f.wantSent("a1")
		f.wantNotices(outbox.NoticeRecovered, 1)

		f.store.faults(func(_ context.Context, statement string) error {
			if statement == "Append" {
				return nil
			}
			return out(nil, "")
		}, nil)
		f.append("a2")
		f.pass(5 * time.Minute) // longer than the lease
		f.wantSent("a1")
		f.store.faults(nil, nil)
		f.pass(30 * time.Second)
		f.wantSent("a1", "a2")
		f.append("a3")
		f.pass(time.Second)
		f.wantSent("a1", "a2", "a3")
		i.stop()
		errorLines := strings.Count(f.logs.String(), "level=ERROR")
		if errorLines < 2 || errorLines > 3 { // once each for statements, and once more for the lease
			f.Errorf("%d lines of errors:\n%s", errorLines, f.logs.String())
		}
		f.wantSaved()
	})
}

func TestStoreThatHangsIsGivenUp(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1")
		var hangs atomic.Bool
		hangs.Store(true)
		f.store.faults(func(ctx context.Context, _ string) error {
			if hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, nil)
		i := f.run()
		f.pass(time.Minute)
		hangs.Store(false)
		f.pass(time.Minute)
		f.wantSent("a1")
		hangs.Store(true)
		f.pass(time.Minute)
		began := time.Now()
		i.cancel()
		if err := <-i.ended; err != nil {
			f.Log(err)
		}
		if took := time.Since(began); took > 45*time.Second {
			f.Errorf("stopping with a store that hangs took %v", took)
		}
	})
}

// A crash is a Run whose context of everything ends: here its settlements are lost.
func TestCrashBetweenPublishAndSettleMeansCopies(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1", "b1")
		f.store.faults(func(_ context.Context, statement string) error {
			if statement == "Settle" {
				return idempotency.ErrUnavailable
			}
			return nil
		}, nil)
		i := f.run()
		f.pass(time.Second)
		f.wantSent("a1", "b1")
		i.cancel()
		if err := <-i.ended; err == nil || !strings.Contains(err.Error(), "published again") {
			f.Errorf("Run returned %v", err)
		}
		f.store.faults(nil, nil)
		i = f.run()
		f.pass(time.Second)
		f.wantSent("a1", "a1", "b1", "b1")
		i.stop()
		f.wantSaved()
	})
}

func TestUnknownSettlementIsSavedOnceMore(t *testing.T) {
	for _, saved := range []bool{false, true} {
		t.Run(fmt.Sprint("saved=", saved), func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.refuse(errRefused, "b1", "b2")
				f.append("b1", "b2")
				i := f.run(parkKey, func(c *outbox.RelayConfig) { c.BackoffMin, c.BackoffMax = time.Minute, time.Minute })
				f.pass(10 * time.Second)
				f.wantStates(map[string]outbox.State{"b1": outbox.Retrying, "b2": outbox.Behind})

				unknown := func(_ context.Context, statement string) error {
					if statement == "Settle" {
						return idempotency.ErrCommitUnknown
					}
					return nil
				}
				if saved {
					f.store.faults(nil, unknown)
				} else {
					f.store.faults(unknown, nil)
				}
				f.refuse(errRefused, "c1")
				f.append("a1", "a2", "c1", "c2")
				f.pass(2 * time.Minute)
				f.store.faults(nil, nil)
				f.pass(2 * time.Minute)
				f.broker.set(nil)
				f.pass(5 * time.Minute)
				f.wantSent("a1", "a2", "b1", "b2", "c1", "c2")
				f.wantStates(map[string]outbox.State{})
				f.wantNotices(outbox.NoticeLost, 0)
				i.stop()
				f.wantSaved(parkKey)
			})
		})
	}
}

// A Register that is cut off begins with its work anew.
func TestAdoptionOfALargeLogIsNotCutOffForEver(t *testing.T) {
	for name, running := range map[string]bool{"at the start": false, "while it runs": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				var restored atomic.Bool
				f.store.faults(func(ctx context.Context, statement string) error {
					switch {
					case !restored.Load(), statement == "Append":
						return nil
					case statement == "Check":
						return nil
					case statement != "Register":
						return outbox.ErrRestored
					}
					pause(ctx, 5*time.Minute)
					restored.Store(ctx.Err() != nil)
					return ctx.Err()
				}, nil)
				restored.Store(!running)
				i := f.run()
				f.pass(time.Second)
				restored.Store(true)
				f.append("a1")
				f.pass(20 * time.Minute)
				f.wantSent("a1")
				i.stop()
			})
		})
	}
}

func TestStoreThatHungForHoursIsFoundSoon(t *testing.T) {
	simulate(t, func(f *fixture) {
		var hangs atomic.Bool
		hangs.Store(true)
		f.store.faults(func(ctx context.Context, statement string) error {
			if hangs.Load() && statement != "Append" {
				<-ctx.Done()
			}
			return ctx.Err()
		}, nil)
		f.append("a1")
		i := f.run()
		f.pass(5 * time.Hour)
		hangs.Store(false)
		f.pass(time.Minute)
		f.wantSent("a1")
		i.stop()
	})
}

func TestRestoredLogIsAdopted(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		var restored atomic.Bool
		restored.Store(true)
		f.store.faults(func(_ context.Context, statement string) error {
			switch {
			case statement == "Register":
				restored.Store(false)
			case restored.Load() && statement != "Append":
				return outbox.ErrRestored
			}
			return nil
		}, nil)
		f.append("a1")
		f.pass(time.Minute)
		f.wantSent("a1")
		i.stop()
	})
}
