package storetest

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/onceward/onceward/idempotency"
)

var errWork = errors.New("work failed")

func transactionRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"FreshStorePassesCheck", func(f *fixture[Tx]) {
			if err := f.store.Check(f.Context()); err != nil {
				f.Fatal(err)
			}
		}},
		{"WorkErrorRollsBackAndComesBack", func(f *fixture[Tx]) {
			err := f.atomicEffect(f.Context(), "a", func(Tx) error { return errWork })
			f.wantIs(err, errWork)
			f.wantEffects("a", 0)
			f.wantVerdict(claimOf("a"), fresh)
			f.wantEffects("a", 1)
		}},
		{"OneErrorFreesEveryClaimOfABatch", func(f *fixture[Tx]) {
			err := f.store.Atomic(f.Context(), claimsOf("a", "b", "c"), func(context.Context, Tx, []idempotency.Verdict) error { return errWork })
			f.wantIs(err, errWork)
			f.wantVerdicts(claimsOf("c", "b", "a"), fresh, fresh, fresh)
		}},
		{"PanicPropagatesAndNothingStaysClaimed", panicPropagates[Tx]},
		{"ExitOfTheGoroutineFreesTheClaim", func(f *fixture[Tx]) {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				// What t.FailNow does in a handler under test.
				_ = f.atomicEffect(f.Context(), "a", func(Tx) error { runtime.Goexit(); return nil })
			}()
			within(f.T, "the end of the goroutine", ended)
			f.wantVerdict(claimOf("a"), fresh)
			f.wantEffects("a", 1)
		}},
		{"ContextOfWorkIsTheCallers", func(f *fixture[Tx]) {
			type key struct{}
			ctx, cancel := context.WithCancel(context.WithValue(f.Context(), key{}, "v"))
			defer cancel()
			err := f.store.Atomic(ctx, claimsOf("a"), func(ctx context.Context, _ Tx, _ []idempotency.Verdict) error {
				if ctx.Value(key{}) != "v" {
					return errors.New("values are lost")
				}
				cancel()
				within(f.T, "the end of the work's context", ctx.Done())
				return ctx.Err()
			})
			f.wantIs(err, context.Canceled)
			f.wantVerdict(claimOf("a"), fresh)
		}},
		{"EndedContextStartsNothing", func(f *fixture[Tx]) {
			ctx, cancel := context.WithCancel(f.Context())
			cancel()
			err := f.store.Atomic(ctx, claimsOf("a"), func(context.Context, Tx, []idempotency.Verdict) error {
				f.Error("work was called")
				return nil
			})
			f.wantIs(err, context.Canceled)
			f.wantVerdict(claimOf("a"), fresh)
		}},
		{"ContextThatEndsDuringWorkRollsBackWhatWorkCallsASuccess", func(f *fixture[Tx]) {
			ctx, cancel := context.WithCancel(f.Context())
			defer cancel()
			err := f.atomicEffect(ctx, "a", func(Tx) error { cancel(); return nil })
			f.wantIs(err, context.Canceled)
			f.wantEffects("a", 0)
			f.wantVerdict(claimOf("a"), fresh)
		}},
		{"EndedContextFreesTheClaimOfWorkThatNeverReturns", func(f *fixture[Tx]) {
			ctx, cancel := context.WithCancel(f.Context())
			defer cancel()
			finish := f.hold(ctx, f.store, claimOf("a"))
			cancel()
			// Work still runs. Somebody else gets the claim all the same.
			if got := f.settle(f.db.Open(f.T, patience), claimOf("a")); got != fresh {
				f.Fatalf("through another handle: %v, want fresh", got)
			}
			// And the handle it hangs in serves others.
			f.wantVerdict(claimOf("a"), duplicate)
			f.wantVerdict(claimOf("b"), fresh)
			f.wantIs(finish(nil), context.Canceled)
			f.wantEffects("a", 1)
		}},
		{"TransactionIsDeadOnceWorkHasReturned", transactionIsDead[Tx]},
		{"WorkThatEndsTheTransactionIsTold", workThatEndsTheTransactionIsTold[Tx]},
	}
}

// atomicEffect claims key, adds its effect and goes on with work.
func (f *fixture[Tx]) atomicEffect(ctx context.Context, key string, work func(tx Tx) error) error {
	return f.store.Atomic(ctx, claimsOf(key), func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
		if err := f.db.AddEffect(ctx, tx, key); err != nil {
			return err
		}
		return work(tx)
	})
}

func panicPropagates[Tx any](f *fixture[Tx]) {
	// More often than any pool has connections: none may be lost on the way.
	for range 50 {
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					f.Fatalf("recovered %v, want the panic of the work", got)
				}
			}()
			err := f.atomicEffect(f.Context(), "a", func(Tx) error { panic("boom") })
			f.Fatalf("Atomic returned %v instead of panicking", err)
		}()
	}
	f.wantEffects("a", 0)
	f.wantVerdict(claimOf("a"), fresh)
	f.wantEffects("a", 1)
}

// workThatEndsTheTransactionIsTold, whatever it returned afterwards and even if
// its context ended as well: a batch whose first work committed is recorded as a
// whole, and only this error tells.
func workThatEndsTheTransactionIsTold[Tx any](f *fixture[Tx]) {
	for name, way := range map[string]endOfTransaction[Tx]{
		"Commit":   {f.db.Commit, 1, duplicate},
		"Rollback": {f.db.Rollback, 0, fresh},
	} {
		for then, result := range map[string]error{"Succeeds": nil, "Fails": errWork} {
			f.wantTold(name+"Then"+then, way, false, result)
			f.wantTold(name+"Then"+then+"AsItsContextEnds", way, true, result)
		}
	}
}

// endOfTransaction is how a work can end its transaction, and what is so then.
type endOfTransaction[Tx any] struct {
	end     func(ctx context.Context, tx Tx) error
	effects int
	next    idempotency.Verdict
}

func (f *fixture[Tx]) wantTold(key string, way endOfTransaction[Tx], contextEnds bool, result error) {
	f.Run(key, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := f.atomicEffect(ctx, key, func(tx Tx) error {
			if err := way.end(ctx, tx); err != nil {
				return err
			}
			if contextEnds {
				cancel()
			}
			return result
		})
		if !errors.Is(err, idempotency.ErrTransactionEnded) || result != nil && !errors.Is(err, result) {
			t.Errorf("error is %v, want one that is %q and the work's own (%v)", err, idempotency.ErrTransactionEnded, result)
		}
		if got := f.db.CountEffects(t, key); got != way.effects {
			t.Errorf("%d effects", got)
		}
		if got := f.verdictOf(claimOf(key)); got != way.next {
			t.Errorf("the next claim is %v, want %v", got, way.next)
		}
	})
}

func transactionIsDead[Tx any](f *fixture[Tx]) {
	for name, result := range map[string]error{"AfterCommit": nil, "AfterRollback": errWork} {
		f.Run(name, func(t *testing.T) {
			var leaked Tx
			err := f.store.Atomic(t.Context(), claimsOf(name), func(_ context.Context, tx Tx, _ []idempotency.Verdict) error {
				leaked = tx
				return result
			})
			if !errors.Is(err, result) {
				t.Fatal(err)
			}
			if err := f.db.AddEffect(t.Context(), leaked, name); err == nil {
				t.Error("a statement on it succeeded")
			}
			if got := f.db.CountEffects(t, name); got != 0 {
				t.Errorf("%d effects were written through it", got)
			}
		})
	}
}
