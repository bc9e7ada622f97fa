package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

const impatience = 200 * time.Millisecond

// TestNoStatementWaitsForALockWithoutEnd, while somebody has locked every table
// as ALTER TABLE does. Claims and questions for parked keys wait for rows only as
// long; for a table they wait until ctx ends, since it is locked when a statement
// is parsed, before any part of it runs.
func TestNoStatementWaitsForALockWithoutEnd(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url), postgres.WithClaimWait(impatience))
	letters := []inbox.DeadLetter{letterOf("a", "k")}
	add := func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		return store.AddDeadLetters(ctx, tx, letters)
	}
	if err := store.Atomic(t.Context(), nil, add); err != nil {
		t.Fatal(err)
	}
	locked, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locked.Rollback(context.Background()) }()
	const lock = `LOCK TABLE onceward.record, onceward.attempt, onceward.dead_letter, onceward.parked_key, onceward.migration IN ACCESS EXCLUSIVE MODE`
	if _, err := locked.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	wantSoon(t, map[string]func() error{
		"Check":              func() error { return store.Check(ctx) },
		"Migrate":            func() error { return store.Migrate(ctx) },
		"CountAttempt":       func() error { _, err := store.CountAttempt(ctx, scope, "a", "", retention); return err },
		"AddDeadLetters":     func() error { return store.Atomic(ctx, nil, add) },
		"DeadLetters":        func() error { _, err := store.DeadLetters(ctx, "billing", all); return err },
		"DiscardDeadLetters": func() error { _, err := store.DiscardDeadLetters(ctx, "billing", all); return err },
		"FailDeadLetter":     func() error { return store.FailDeadLetter(ctx, "billing", 1, "") },
		"TakeDeadLetter": func() error {
			return store.TakeDeadLetter(ctx, "billing", 1, func(context.Context, pgx.Tx, inbox.DeadLetter) error { return nil })
		},
		"Prune": func() error { _, err := store.Prune(ctx, 10); return err },
	})
	ctx, cancel := context.WithTimeout(ctx, 3*impatience)
	defer cancel()
	wantIs(t, store.Atomic(ctx, claimsOf("a"), effectOf("a")), context.DeadlineExceeded)
}

// TestClaimGivenUpHitsNoOtherStatement: the server is asked to cancel the wait of
// a claim, which may end by itself at that moment. Neither what runs next on the
// connection nor, behind a pooler, somebody else's statement is cancelled then.
func TestClaimGivenUpHitsNoOtherStatement(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	for name, url := range map[string]string{
		"direct":    url,
		"PgBouncer": withSetting(stack.PgBouncer(t, url, map[string]string{"default_pool_size": "6"}), "default_query_exec_mode=exec"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const clients, rounds = 6, 60
			pool := newPool(t, url)
			impatient := postgres.New(pool, postgres.WithClaimWait(3*time.Millisecond))
			var gaveUp, done atomic.Int32
			for i := range rounds {
				key := fmt.Sprintf("%s-%d", name, i)
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						err := impatient.Atomic(t.Context(), claimsOf(key), func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error {
							if verdicts[0] != idempotency.Fresh {
								return nil
							}
							_, err := tx.Exec(ctx, `SELECT pg_sleep(0.02 * random())`)
							return errors.Join(err, effectOf(key)(ctx, tx, verdicts))
						})
						switch {
						case err == nil:
							done.Add(1)
						case errors.Is(err, idempotency.ErrInProgress):
							gaveUp.Add(1)
						default:
							t.Errorf("%s: %v", key, err)
						}
					})
				}
				all.Wait()
			}
			if gaveUp.Load() == 0 || done.Load() == 0 {
				t.Errorf("%d claims were given up, %d were not: nothing was proved", gaveUp.Load(), done.Load())
			}
			for i := range rounds {
				if n := effects(t, admin, fmt.Sprintf("%s-%d", name, i)); n > 1 {
					t.Errorf("message %d has %d effects", i, n)
				}
			}
		})
	}
}

// TestClaimWaitsForATurnInThePooler longer than the claim wait: no other
// transaction holds the claim.
func TestClaimWaitsForATurnInThePooler(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	through := withSetting(stack.PgBouncer(t, url, oneServer), "default_query_exec_mode=exec")
	other, err := newPool(t, through, one).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store := postgres.New(newPool(t, through, one), postgres.WithClaimWait(time.Millisecond))
	done := make(chan error, 1)
	go func() { done <- store.Atomic(t.Context(), claimsOf("a"), effectOf("a")) }()
	select {
	case err := <-done:
		t.Fatalf("it gave up: %v", err)
	case <-time.After(20 * time.Millisecond): // Longer than the bound.
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the claim", done); err != nil {
		t.Fatal(err)
	}
	if n := effects(t, admin, "a"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// wantSoon: each gives up when the claim wait is over.
func wantSoon(t *testing.T, calls map[string]func() error) {
	t.Helper()
	for doing, call := range calls {
		began := time.Now()
		err := call()
		wantIs(t, err, idempotency.ErrInProgress)
		// Generous, for a busy machine.
		if took := time.Since(began); took > impatience+2*time.Second {
			t.Errorf("%s gave up after %v, the claim wait is %v: %v", doing, took, impatience, err)
		}
	}
}

func TestRowsOfTheStoreThatOthersLockAreWaitedForNoLongerThanTheClaimWait(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url), postgres.WithClaimWait(impatience))
	verdictOf(t, store, "a")
	ctx := t.Context()
	count := func() error { _, err := store.CountAttempt(ctx, scope, "a", "", retention); return err }
	if err := count(); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, `UPDATE onceward.record SET expires_at = now() - interval '1 hour'`)
	locked, err := admin.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locked.Rollback(context.Background()) }()
	for _, statement := range []string{
		`SELECT FROM onceward.record FOR UPDATE`, `SELECT FROM onceward.attempt FOR UPDATE`,
		`INSERT INTO onceward.record (scope, key, expires_at) VALUES ('` + scope + `', 'b', now())`,
		`CREATE SCHEMA other`,
	} {
		if _, err := locked.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	wantSoon(t, map[string]func() error{
		"Atomic":       func() error { return store.Atomic(ctx, claimsOf("b"), effectOf("b")) },
		"Atomic, two":  func() error { return store.Atomic(ctx, claimsOf("b", "c"), effectOf("b")) },
		"CountAttempt": count,
		"Prune":        func() error { _, err := store.Prune(ctx, 10); return err },
		"Migrate": func() error {
			return postgres.New(admin, postgres.WithSchema("other"), postgres.WithClaimWait(impatience)).Migrate(ctx)
		},
	})
}

// TestClaimThatStatementTimeoutEndsIsInProgress and no outage, since the server is well: it is told by another try.
func TestClaimThatStatementTimeoutEndsIsInProgress(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	through := withSetting(url, "statement_timeout=100")
	overPgx, overSQL := postgres.New(newPool(t, through, one)), postgres.NewSQL(newSQLPool(t, through))
	held, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if _, err := held.Exec(t.Context(), `INSERT INTO onceward.record (scope, key, expires_at) VALUES ($1, 'b', now())`, scope); err != nil {
		t.Fatal(err)
	}
	for _, claims := range [][]idempotency.Claim{claimsOf("b"), claimsOf("a", "b", "c")} {
		wantIs(t, overPgx.Atomic(t.Context(), claims, effectOf("a")), idempotency.ErrInProgress)
		wantIs(t, overSQL.Atomic(t.Context(), claims, nil), idempotency.ErrInProgress)
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, overPgx, "b"); got != idempotency.Duplicate {
		t.Errorf("%v once the other one has committed", got)
	}
}

// TestMigrateWaitsForAnotherOneUntilItsContextEnds, whatever the connection's own
// lock_timeout and the claim wait: the other one does its work.
func TestMigrateWaitsForAnotherOneUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, withSetting(url, "lock_timeout=1"), one), postgres.WithClaimWait(time.Millisecond))
	held, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	// The lock that a Migrate takes, whose number is the store's own affair.
	if _, err := held.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, migrateLock("onceward")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- store.Migrate(t.Context()) }()
	eventually(t, "the wait of Migrate", func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`) == 1
	})
	select {
	case err := <-done:
		t.Fatalf("it gave up: %v", err)
	case <-time.After(10 * time.Millisecond): // Longer than both bounds.
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the end of Migrate", done); err != nil {
		t.Fatal(err)
	}
}

func migrateLock(schema string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("onceward/migrate/" + schema))
	return int64(h.Sum64())
}
