package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

const (
	// patience is a claim wait that no test means to run into, and soon is how
	// long a test waits for what must happen. Both allow for a busy machine.
	patience = 20 * time.Second
	soon     = 60 * time.Second

	// impatience is the claim wait of tests that do mean to run into it.
	impatience = 200 * time.Millisecond

	retention = 7 * 24 * time.Hour
	scope     = "billing/orders"
)

// ruleOn is a promise, and what proves it on a fixture.
type ruleOn[F any] struct {
	name  string
	check func(f F)
}

type rule[Tx any] = ruleOn[*fixture[Tx]]

type group[F any] struct {
	name  string
	rules []ruleOn[F]
}

// runGroups proves every rule in parallel, each on a fixture of its own.
func runGroups[F any](t *testing.T, newFixture func(t *testing.T) F, groups []group[F]) {
	t.Helper()
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range g.rules {
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					r.check(newFixture(t))
				})
			}
		})
	}
}

// Run proves every rule on databases made by harness.
func Run[Tx any](t *testing.T, harness Harness[Tx]) {
	t.Helper()
	newFixture := func(t *testing.T) *fixture[Tx] {
		t.Helper()
		db := harness(t)
		return &fixture[Tx]{T: t, db: db, store: db.Open(t, patience)}
	}
	runGroups(t, newFixture, []group[*fixture[Tx]]{
		{"Claim", claimRules[Tx]()},
		{"Transaction", transactionRules[Tx]()},
		{"Concurrency", concurrencyRules[Tx]()},
		{"Attempts", attemptRules[Tx]()},
		{"DeadLetters", deadLetterRules[Tx]()},
		{"Selection", selectionRules[Tx]()},
		{"ParkedKeys", parkedKeyRules[Tx]()},
		{"Redrive", redriveRules[Tx]()},
		{"Prune", pruneRules[Tx]()},
	})
}

// fixture is one test's database with a first store on it.
type fixture[Tx any] struct {
	*testing.T

	db    Database[Tx]
	store inbox.Store[Tx]
}

func claimOf(key string) idempotency.Claim {
	return idempotency.Claim{Scope: scope, Key: key, Retention: retention}
}

func claimsOf(keys ...string) []idempotency.Claim {
	claims := make([]idempotency.Claim, len(keys))
	for i, key := range keys {
		claims[i] = claimOf(key)
	}
	return claims
}

// carryOut claims, adds the effect of each key that is fresh, and commits.
func (f *fixture[Tx]) carryOut(ctx context.Context, store inbox.Store[Tx], claims ...idempotency.Claim) ([]idempotency.Verdict, error) {
	var found []idempotency.Verdict
	err := store.Atomic(ctx, claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
		found = append([]idempotency.Verdict(nil), verdicts...)
		for i, verdict := range verdicts {
			if verdict != idempotency.Fresh {
				continue
			}
			if err := f.db.AddEffect(ctx, tx, claims[i].Key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// settle carries out one claim, again and again while the store says that it
// lost to another transaction, and returns the verdict it committed with.
func (f *fixture[Tx]) settle(store inbox.Store[Tx], claim idempotency.Claim) idempotency.Verdict {
	f.Helper()
	verdict, err := f.trySettle(store, claim)
	if err != nil {
		f.Fatalf("claim of %.20q: %v", claim.Key, err)
	}
	return verdict
}

func (f *fixture[Tx]) trySettle(store inbox.Store[Tx], claim idempotency.Claim) (idempotency.Verdict, error) {
	ctx, cancel := context.WithTimeout(f.Context(), soon)
	defer cancel()
	for {
		verdicts, err := f.carryOut(ctx, store, claim)
		if err == nil {
			return verdicts[0], nil
		}
		if !lost(err) {
			return 0, err
		}
	}
}

// lost reports that a transaction was not run, or rolled back, because of
// another one, and should be run again.
func lost(err error) bool {
	return errors.Is(err, idempotency.ErrInProgress) || errors.Is(err, idempotency.ErrConflict)
}

func (f *fixture[Tx]) wantVerdict(claim idempotency.Claim, want idempotency.Verdict) {
	f.Helper()
	if got := f.settle(f.store, claim); got != want {
		f.Fatalf("claim of %.20q: %v, want %v", claim.Key, got, want)
	}
}

func (f *fixture[Tx]) wantVerdicts(claims []idempotency.Claim, want ...idempotency.Verdict) {
	f.Helper()
	got, err := f.carryOut(f.Context(), f.store, claims...)
	if err != nil {
		f.Fatalf("batch of %d claims: %v", len(claims), err)
	}
	if len(got) != len(want) {
		f.Fatalf("batch of %d claims: %d verdicts", len(claims), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			f.Errorf("claim %d (%.20q): %v, want %v", i, claims[i].Key, got[i], want[i])
		}
	}
	if f.Failed() {
		f.FailNow()
	}
}

func (f *fixture[Tx]) wantEffects(name string, want int) {
	f.Helper()
	if got := f.db.CountEffects(f.T, name); got != want {
		f.Fatalf("%q was carried out %d times, want %d", name, got, want)
	}
}

func (f *fixture[Tx]) wantIs(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error is %v, want one that is %q", err, want)
	}
}

// within fails the test unless it receives before the time is up.
func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("%s did not happen within %v", what, soon)
		panic("unreachable")
	}
}

// hold runs a transaction with the claim and an effect that stays open until
// finish is called; finish returns what Atomic returned when work returns result.
func (f *fixture[Tx]) hold(ctx context.Context, store inbox.Store[Tx], claim idempotency.Claim) (finish func(result error) error) {
	f.Helper()
	held := make(chan struct{})
	results := make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- store.Atomic(ctx, []idempotency.Claim{claim}, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
			if verdicts[0] != idempotency.Fresh {
				return errors.New("the claim to hold is " + verdicts[0].String())
			}
			if err := f.db.AddEffect(ctx, tx, claim.Key); err != nil {
				return err
			}
			close(held)
			return <-results // Deaf to ctx, as a handler can be.
		})
	}()
	finished := false
	finish = func(result error) error {
		finished = true
		results <- result
		return within(f.T, "the end of the transaction that held the claim", done)
	}
	f.Cleanup(func() {
		if !finished {
			results <- errors.New("test over")
			_ = <-done //nolint:staticcheck // An error that says the test is over.
		}
	})
	select {
	case <-held:
	case err := <-done:
		finished = true
		f.Fatalf("transaction that holds the claim of %.20q: %v", claim.Key, err)
	}
	return finish
}
