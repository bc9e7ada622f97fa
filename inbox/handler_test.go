package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestPanicIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(2), inbox.MaxAttempts(2))
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if m.ID == "a" {
			panic(errHandler)
		}
		return nil
	}
	results := f.process(messages("a", "b")...)
	f.wantOutcomes(results, "failed, not run")
	panicked, ok := errors.AsType[*inbox.PanicError](results[0].Err)
	if !ok || panicked.Value != any(errHandler) || !strings.Contains(string(panicked.Stack), "TestPanicIsAFailedAttempt") {
		t.Errorf("error is %#v", results[0].Err)
	}
	wantError(t, results[0].Err, errHandler)
	f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
	f.wantEffects("b")
}

// ownValue contains itself: fmt recurses into it until the stack overflows, which ends the process.
func ownValue() any {
	a := []any{nil}
	a[0] = a
	return a
}

type selfishError struct{}

func (selfishError) Error() string { panic(ownValue()) }

func TestPanicWithAValueThatContainsItselfEndsNothing(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"handler":           func() error { panic(ownValue()) },
		"error":             func() error { return selfishError{} },
		"panic of an error": func() error { panic(selfishError{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, inbox.MaxAttempts(1), inbox.OnEvent(func(context.Context, inbox.Event) { panic(ownValue()) }))
			f.on = func(context.Context, *fakeTx, inbox.Message) error { return fail() }
			f.wantOutcomes(f.process(message("a")), "parked")
			if log := f.logs.String(); !strings.Contains(log, "OnEvent panicked") || !strings.Contains(log, "panicked: ") {
				t.Errorf("log is %s", log)
			}
		})
	}
}

func TestGoexitIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if m.ID == "a" {
			runtime.Goexit()
		}
		return nil
	}
	results := f.process(messages("a")...)
	f.wantOutcomes(results, "failed")
	if !strings.Contains(results[0].Err.Error(), "Goexit") || f.attempts("a") != 1 {
		t.Errorf("%v, %d attempts", results[0].Err, f.attempts("a"))
	}
	f.wantOutcomes(f.process(messages("b")...), "processed")
}

func TestHandlerThatEndsItsTransactionFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(*fakeTx)
		then string
	}{
		"commit":   {(*fakeTx).Commit, "duplicate"},
		"rollback": {(*fakeTx).Rollback, "processed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{T: t, store: newFakeStore()}
			first := true
			f.inbox = inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error {
				if err := tx.Do(m.ID); err != nil {
					return err
				}
				if first {
					first = false
					c.end(tx)
				}
				return nil
			}, f.options(nil)...)
			results := f.process(message("a"))
			f.wantOutcomes(results, "failed")
			wantError(t, results[0].Err, idempotency.ErrTransactionEnded)
			if n := f.attempts("a"); n != 1 {
				t.Errorf("%d attempts", n)
			}
			f.wantOutcomes(f.process(message("a")), c.then)
			f.wantEffects("a")
		})
	}
}

func TestHandlerIsToldWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(5*time.Second))
		f.on = func(ctx context.Context, _ *fakeTx, _ inbox.Message) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, inbox.ErrHandlerTimeout) || cause.Error() != "handler ran past its HandlerTimeout of 5s" {
				t.Errorf("cause is %v", context.Cause(ctx))
			}
			return ctx.Err()
		}
		start := time.Now()
		results := f.process(messages("a")...)
		f.wantOutcomes(results, "failed")
		wantError(t, results[0].Err, inbox.ErrHandlerTimeout)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v", took)
		}
		if f.attempts("a") != 1 || f.inbox.Stats().Abandoned != 0 {
			t.Errorf("%d attempts, %+v", f.attempts("a"), f.inbox.Stats())
		}
	})
}

func TestEachCallOfTheHandlerHasItsOwnTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(5*time.Second), inbox.Batch(4))
		f.on = func(context.Context, *fakeTx, inbox.Message) error {
			<-time.After(4 * time.Second)
			return nil
		}
		f.wantOutcomes(f.process(messages("a", "b", "c", "d")...), "processed, processed, processed, processed")
	})
}

func TestHandlerThatFinishesALittleLateIsCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(5*time.Second))
		f.on = func(context.Context, *fakeTx, inbox.Message) error {
			<-time.After(5*time.Second + 500*time.Millisecond)
			return nil
		}
		f.wantOutcomes(f.process(message("a")), "processed")
	})
}

func TestHandlerThatDoesNotReturnIsAbandoned(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*testing.T, ...inbox.Option) *fixture{"each": setup, "bulk": setupBulk} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.HandlerTimeout(5*time.Second), inbox.MaxAttempts(2))
				hang := make(chan struct{})
				f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
					if m.ID == "a" {
						<-hang
					}
					return nil
				}
				start := time.Now()
				ms := messages("a", "b")
				results := f.process(ms...)
				f.wantOutcomes(results, "failed, not run")
				wantError(t, results[0].Err, inbox.ErrHandlerTimeout)
				if took := time.Since(start); took != 6*time.Second {
					t.Errorf("took %v", took)
				}
				// The claim is free although the handler is still running.
				f.wantOutcomes(f.process(ms...), "parked, processed")
				f.wantLetters("a attempts")
				f.wantEvents(inbox.EventAbandoned, 2)
				// What it does when it comes back concerns nobody any more.
				clear(ms)
				close(hang)
				synctest.Wait()
				f.wantEffects("b")
				f.wantOutcomes(results, "failed, not run")
			})
		})
	}
}

func TestAbandonedHandlerMayPanicOrExitLate(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(){"panic": func() { panic("late") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.HandlerTimeout(time.Second))
				hang := make(chan struct{})
				f.on = func(context.Context, *fakeTx, inbox.Message) error {
					<-hang
					late()
					return nil
				}
				f.wantOutcomes(f.process(message("a")), "failed")
				close(hang)
				synctest.Wait()
			})
		})
	}
}

func TestLostLeaseWaitsForTheHandlerNoLongerThanTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(time.Hour), inbox.Batch(2))
		hang := make(chan struct{})
		f.on = func(context.Context, *fakeTx, inbox.Message) error {
			<-hang
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		results, err := f.inbox.Process(ctx, messages("a", "b"))
		wantError(t, err, context.DeadlineExceeded)
		f.wantOutcomes(results, "not run, not run")
		if took := time.Since(start); took != 11*time.Second {
			t.Errorf("took %v", took)
		}
		if len(f.store.attempts) != 0 {
			t.Errorf("attempts %v", f.store.attempts)
		}
		f.wantEvents(inbox.EventAbandoned, 1)
		close(hang)
		synctest.Wait()
		f.wantEffects()
	})
}

func TestLostLeaseEndsTheWaitForAClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		slow := inbox.New(f.store, "billing", func(context.Context, *fakeTx, inbox.Message) error {
			<-time.After(time.Minute)
			return nil
		}, inbox.HandlerTimeout(time.Hour))
		var other sync.WaitGroup
		other.Go(func() {
			if _, err := slow.Process(t.Context(), messages("a")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), fakeClaimWait/2)
		defer cancel()
		start := time.Now()
		_, err := f.inbox.Process(ctx, messages("a"))
		wantError(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took != fakeClaimWait/2 {
			t.Errorf("took %v", took)
		}
		other.Wait()
	})
}

func TestCommitUnderWayIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		f.store.onCommit = func() {
			cancel()
			<-time.After(time.Minute)
		}
		results, err := f.inbox.Process(ctx, messages("a", "b"))
		wantError(t, err, context.Canceled)
		f.wantOutcomes(results, "processed, not run")
		f.wantEffects("a")
	})
}

func TestAbandonedHandlerLeavesTheMessagesAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		hang := make(chan struct{})
		f.inbox = inbox.New(f.store, "billing", func(_ context.Context, _ *fakeTx, m inbox.Message) error {
			f.called(m)
			<-hang
			return nil
		}, f.options([]inbox.Option{inbox.HandlerTimeout(time.Second), inbox.Batch(3)})...)
		ms := messages("a", "b", "c")
		results := f.process(ms...)
		f.wantOutcomes(results, "failed, not run, not run")
		close(hang)
		clear(ms) // as an adapter does that reuses its buffer
		synctest.Wait()
		f.wantCalls("a", "a") // in the batch, then alone
	})
}

// A handler that comes back late with a success must not make its transaction go
// on, read messages that the adapter has taken back, and ask for a commit.
func TestAbandonedHandlerThatSucceedsLateHasFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		hang := make(chan struct{})
		f.inbox = inbox.New(f.store, "billing", func(context.Context, *fakeTx, inbox.Message) error {
			<-hang
			return nil
		}, f.options([]inbox.Option{inbox.HandlerTimeout(time.Second), inbox.Batch(3)})...)
		ms := messages("a", "b", "c")
		f.wantOutcomes(f.process(ms...), "failed, not run, not run")
		agreed := f.store.agreed
		close(hang)
		clear(ms)
		synctest.Wait()
		if f.store.agreed != agreed {
			t.Errorf("%d transactions asked for their commit", f.store.agreed-agreed)
		}
	})
}

func TestHandlerContextCarriesNoDeadline(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.on = func(ctx context.Context, _ *fakeTx, _ inbox.Message) error {
		if at, ok := ctx.Deadline(); ok {
			t.Errorf("deadline at %v", at)
		}
		return nil
	}
	f.process(message("a"))
}

func TestRedriveLeavesACommitUnderWayAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.dead(message("a"))
		ctx, cancel := context.WithCancel(t.Context())
		f.store.onCommit = func() {
			cancel()
			<-time.After(time.Minute)
		}
		result, _ := f.inbox.Redrive(ctx, inbox.Filter{Limit: 1}, inbox.Apply)
		if result.Redriven != 1 {
			t.Errorf("%+v", result)
		}
		f.wantEffects("a")
	})
}
