package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func concurrencyRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"OfConcurrentClaimsExactlyOneIsFresh", exactlyOneIsFresh[Tx]},
		{"AfterARollbackExactlyOneWaiterGetsTheClaim", oneWaiterGetsTheClaim[Tx]},
		{"WaiterOfACommitIsADuplicate", func(f *fixture[Tx]) {
			finish := f.hold(f.Context(), f.store, claimOf("a"))
			verdict := make(chan idempotency.Verdict, 1)
			other := f.db.Open(f.T, patience)
			go func() {
				v, _ := f.trySettle(other, claimOf("a"))
				verdict <- v
			}()
			if err := finish(nil); err != nil {
				f.Fatal(err)
			}
			if got := within(f.T, "the waiter's verdict", verdict); got != duplicate {
				f.Fatalf("the waiter got %v", got)
			}
			f.wantEffects("a", 1)
		}},
		{"ClaimHeldLongerThanTheWaitIsInProgress", heldClaimIsInProgress[Tx]},
		{"EndedContextEndsTheWaitForAClaim", func(f *fixture[Tx]) {
			for _, waiter := range []inbox.Store[Tx]{f.store, f.db.Open(f.T, time.Hour)} {
				finish := f.hold(f.Context(), f.store, claimOf("a"))
				ctx, cancel := context.WithTimeout(f.Context(), impatience)
				began := time.Now()
				_, err := f.carryOut(ctx, waiter, claimOf("a"))
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) && !lost(err) {
					f.Fatalf("error %v, want the context's", err)
				}
				if took := time.Since(began); took > patience/2 {
					f.Fatalf("waited %v for a claim with a context of %v", took, impatience)
				}
				f.wantIs(finish(errWork), errWork)
			}
			f.wantEffects("a", 0)
		}},
		{"OppositeOrdersDoNotDeadlockForEver", oppositeOrders[Tx]},
		{"RandomScheduleCarriesOutEachKeyAtMostOnce", randomSchedule[Tx]},
	}
}

func exactlyOneIsFresh[Tx any](f *fixture[Tx]) {
	stores := []inbox.Store[Tx]{f.store, f.db.Open(f.T, patience)}
	for round := range 10 {
		key := fmt.Sprintf("round-%d", round)
		var freshes atomic.Int32
		f.inParallel(16, func(i int) error {
			verdict, err := f.trySettle(stores[i%len(stores)], claimOf(key))
			if verdict == fresh {
				freshes.Add(1)
			}
			return err
		})
		if got := freshes.Load(); got != 1 {
			f.Fatalf("%s: fresh %d times", key, got)
		}
		f.wantEffects(key, 1)
	}
}

// inParallel runs n copies of work that start together, and fails the test on
// the first error.
func (f *fixture[Tx]) inParallel(n int, work func(i int) error) {
	f.Helper()
	var all sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, n)
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = work(i)
		})
	}
	close(start)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
}

func oneWaiterGetsTheClaim[Tx any](f *fixture[Tx]) {
	stores := []inbox.Store[Tx]{f.store, f.db.Open(f.T, patience)}
	finish := f.hold(f.Context(), f.store, claimOf("a"))
	verdicts := make(chan idempotency.Verdict, 8)
	for i := range cap(verdicts) {
		go func() {
			verdict, err := f.trySettle(stores[i%len(stores)], claimOf("a"))
			if err != nil {
				f.Errorf("waiter: %v", err)
			}
			verdicts <- verdict
		}()
	}
	f.wantIs(finish(errWork), errWork)
	freshes := 0
	for range cap(verdicts) {
		if within(f.T, "a waiter's verdict", verdicts) == fresh {
			freshes++
		}
	}
	if freshes != 1 {
		f.Fatalf("%d waiters got the claim", freshes)
	}
	f.wantEffects("a", 1)
}

func heldClaimIsInProgress[Tx any](f *fixture[Tx]) {
	// The holder's own handle and a foreign one answer alike.
	stores := []inbox.Store[Tx]{f.db.Open(f.T, impatience), f.db.Open(f.T, impatience)}
	finish := f.hold(f.Context(), stores[0], claimOf("a"))
	for i, store := range stores {
		for _, claims := range [][]idempotency.Claim{claimsOf("a"), claimsOf("0", "a", "z")} {
			began := time.Now()
			err := store.Atomic(f.Context(), claims, func(context.Context, Tx, []idempotency.Verdict) error {
				f.Error("work was called")
				return nil
			})
			f.wantIs(err, idempotency.ErrInProgress)
			// Generous, for a busy machine; far below any default it might fall back to.
			if took := time.Since(began); took > impatience+2*time.Second {
				f.Errorf("handle %d: answered after %v, the claim wait is %v", i, took, impatience)
			}
		}
	}
	if err := finish(nil); err != nil {
		f.Fatal(err)
	}
	f.wantVerdicts(claimsOf("0", "a", "z"), fresh, duplicate, fresh)
	f.wantEffects("a", 1)
}

func oppositeOrders[Tx any](f *fixture[Tx]) {
	stores := []inbox.Store[Tx]{f.store, f.db.Open(f.T, patience)}
	for round := range 10 {
		forth := claimsOf()
		for i := range 20 {
			forth = append(forth, claimOf(fmt.Sprintf("%d-%d", round, i)))
		}
		back := slices.Clone(forth)
		slices.Reverse(back)
		f.inParallel(4, func(i int) error {
			claims := forth
			if i%2 == 1 {
				claims = back
			}
			ctx, cancel := context.WithTimeout(f.Context(), soon)
			defer cancel()
			for {
				if _, err := f.carryOut(ctx, stores[i/2], claims...); err == nil || !lost(err) {
					return err
				}
			}
		})
		for _, claim := range forth {
			f.wantEffects(claim.Key, 1)
		}
	}
}

// randomSchedule lets many goroutines on two handles claim few keys, alone and
// in batches, and commit, fail, panic, give up and hang on as dice decide.
func randomSchedule[Tx any](f *fixture[Tx]) {
	seed := time.Now().UnixNano()
	f.Logf("seed %d", seed)
	const workers, rounds, keys = 8, 25, 12
	stores := []inbox.Store[Tx]{f.store, f.db.Open(f.T, patience)}
	var committed [keys]atomic.Int32
	name := func(key int) string { return fmt.Sprintf("key-%d", key) }

	f.inParallel(workers, func(worker int) error {
		dice := rand.New(rand.NewSource(seed + int64(worker))) // Dice that can be thrown again.
		for range rounds {
			batch := dice.Perm(keys)[:1+dice.Intn(4)]
			var claims []idempotency.Claim
			for _, key := range batch {
				claims = append(claims, claimOf(name(key)))
			}
			verdicts, err := f.atRisk(stores[worker%len(stores)], claims, dice.Intn(6))
			switch {
			case err == nil:
				for i, key := range batch {
					if verdicts[i] == fresh {
						committed[key].Add(1)
					}
				}
			case lost(err), errors.Is(err, errWork), errors.Is(err, context.Canceled):
			default:
				return fmt.Errorf("worker %d: %w", worker, err)
			}
		}
		return nil
	})

	for key := range keys {
		want := int(committed[key].Load())
		if want > 1 {
			f.Errorf("%s: %d transactions committed a fresh claim", name(key), want)
		}
		f.wantEffects(name(key), want)
	}
	// Whatever happened, nothing is stuck.
	for key := range keys {
		f.settle(f.store, claimOf(name(key)))
		f.wantEffects(name(key), 1)
	}
}

// atRisk carries out claims with an outcome of 0 to 5: panic, error, ended
// context, and three times success.
func (f *fixture[Tx]) atRisk(store inbox.Store[Tx], claims []idempotency.Claim, outcome int) (verdicts []idempotency.Verdict, err error) {
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v: %w", r, errWork)
		}
	}()
	err = store.Atomic(ctx, claims, func(ctx context.Context, tx Tx, found []idempotency.Verdict) error {
		verdicts = slices.Clone(found)
		for i, verdict := range found {
			if verdict != fresh {
				continue
			}
			if err := f.db.AddEffect(ctx, tx, claims[i].Key); err != nil {
				return err
			}
			runtime.Gosched()
		}
		switch outcome {
		case 0:
			panic("boom")
		case 1:
			return errWork
		case 2:
			cancel()
		}
		return nil
	})
	return verdicts, err
}
