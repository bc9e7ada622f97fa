package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// one is a pool of a single connection: what a test leaves on it, the next
// transaction finds.
func one(c *pgxpool.Config) { c.MaxConns = 1 }

func backendOf(t *testing.T, tx pgx.Tx) (pid int) {
	t.Helper()
	if err := tx.QueryRow(context.Background(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone waits until the server has ended a backend, and thus its transaction.
func gone(t *testing.T, admin *pgxpool.Pool, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the end of backend %d", pid), func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
}

func terminate(t *testing.T, admin *pgxpool.Pool, pid int) {
	t.Helper()
	execute(t, admin, `SELECT pg_terminate_backend($1)`, pid)
	gone(t, admin, pid)
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want one that is %q", err, want)
	}
}

func TestHandlersLockTimeoutIsAsTheUserSetIt(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	add := func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		return postgres.New(admin).AddDeadLetters(ctx, tx, []inbox.DeadLetter{letterOf("a", "k"), letterOf("b", "a"), letterOf("c", "b"), letterOf("d", "c")})
	}
	if err := postgres.New(admin).Atomic(t.Context(), nil, add); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]struct {
		configure func(*pgxpool.Config)
		letter    int64
		want      string
	}{
		"Default":          {func(*pgxpool.Config) {}, 2, "0"},
		"StartupParameter": {func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "1234" }, 3, "1234ms"},
		// What SET LOCAL … TO DEFAULT would lose.
		"SetOnConnect": {func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, `SET lock_timeout = '2s'`)
				return err
			}
		}, 4, "2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, url, set.configure)
			store := postgres.New(pool)
			wantKept := func(ctx context.Context, tx pgx.Tx, where string) error {
				var got string
				if err := tx.QueryRow(ctx, `SHOW lock_timeout`).Scan(&got); err != nil || got != set.want {
					return fmt.Errorf("lock_timeout is %q %s, want %q, error %w", got, where, set.want, err)
				}
				return nil
			}
			for _, claims := range [][]idempotency.Claim{nil, claimsOf(name), claimsOf(name), claimsOf(name, name+"2"), claimsOf(name, name+"2")} {
				err := store.Atomic(t.Context(), claims, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
					for _, key := range []string{"k", "free"} {
						if _, err := store.ParkedKeys(ctx, tx, "billing", "orders", [][]byte{[]byte(key)}); err != nil {
							return err
						}
					}
					if err := store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letterOf("x", "k")}); err != nil {
						return err
					}
					return wantKept(ctx, tx, fmt.Sprintf("in the work after %d claims", len(claims)))
				})
				if err != nil {
					t.Error(err)
				}
			}
			err := store.TakeDeadLetter(t.Context(), "billing", set.letter, func(ctx context.Context, tx pgx.Tx, _ inbox.DeadLetter) error {
				return wantKept(ctx, tx, "in a redrive")
			})
			if err != nil {
				t.Error(err)
			}
			if got := queryRow[string](t, pool, `SHOW lock_timeout`); got != set.want {
				t.Errorf("lock_timeout is %q on the connection afterwards", got)
			}
		})
	}
}

func TestDefaultIsolationDoesNotMatter(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	for _, level := range []string{"serializable", "repeatable read"} {
		store := postgres.New(newPool(t, url, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
		}))
		fresh, all := make(chan string, 64), sync.WaitGroup{}
		for range 8 {
			all.Go(func() {
				for i := range 20 {
					key := fmt.Sprintf("%s-%d", level, i)
					err := store.Atomic(t.Context(), claimsOf(key), func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error {
						var got string
						if err := tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&got); err != nil || got != "read committed" {
							return fmt.Errorf("isolation %q, error %w", got, err)
						}
						if verdicts[0] == idempotency.Fresh {
							fresh <- key
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if got := len(fresh); got != 20 {
			t.Errorf("%s: %d of 20 keys were fresh", level, got)
		}
	}
}

func TestDeadlockOfTheWorkIsAConflict(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `INSERT INTO effect VALUES ('x'), ('y')`)
	store := postgres.New(newPool(t, url))
	var both sync.WaitGroup
	both.Add(2)
	run := func(key, first, second string) error {
		return store.Atomic(t.Context(), claimsOf(key), func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
			if _, err := tx.Exec(ctx, `UPDATE effect SET name = name WHERE name = $1`, first); err != nil {
				return err
			}
			both.Done()
			both.Wait()
			_, err := tx.Exec(ctx, `UPDATE effect SET name = name WHERE name = $1`, second)
			return err
		})
	}
	results := make(chan error, 2)
	go func() { results <- run("a", "x", "y") }()
	go func() { results <- run("b", "y", "x") }()
	err := errors.Join(within(t, "the first end", results), within(t, "the second end", results))
	wantIs(t, err, idempotency.ErrConflict)
}

func TestSQLStateFromAnotherDatabaseIsTheWorksOwn(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	store := postgres.New(newPool(t, url))
	foreign := &pgconn.PgError{Code: "40001"}
	err := store.Atomic(t.Context(), claimsOf("a"), effectOf("a", func(pgx.Tx) error { return foreign }))
	wantIs(t, err, foreign)
	if errors.Is(err, idempotency.ErrConflict) {
		t.Errorf("taken for this transaction's: %v", err)
	}
}

func TestBackendKilledAtAnyStepLosesNothing(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	for name, step := range map[string]struct {
		// idle: the pooled connection was killed before the message came.
		idle bool
		work func(tx pgx.Tx) error
		want error
	}{
		"before the claim": {idle: true, want: idempotency.ErrUnavailable},
		"before a statement of the work": {work: func(tx pgx.Tx) error {
			terminate(t, admin, backendOf(t, tx))
			_, err := tx.Exec(t.Context(), `SELECT 1`)
			return err
		}, want: idempotency.ErrUnavailable},
		"during a statement of the work": {work: func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(600)`)
			return err
		}, want: idempotency.ErrUnavailable},
		"and the work hides why": {work: func(tx pgx.Tx) error {
			terminate(t, admin, backendOf(t, tx))
			_, _ = tx.Exec(t.Context(), `SELECT 1`)
			return errors.New("order not found")
		}, want: idempotency.ErrUnavailable},
		"and the work swallows it": {work: func(tx pgx.Tx) error {
			terminate(t, admin, backendOf(t, tx))
			_, _ = tx.Exec(t.Context(), `SELECT 1`)
			return nil
		}, want: idempotency.ErrUnavailable},
		"before the commit": {work: func(tx pgx.Tx) error {
			terminate(t, admin, backendOf(t, tx))
			return nil
		}, want: idempotency.ErrCommitUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, url, one, func(c *pgxpool.Config) {
				// Without the pool's own look at idle connections.
				c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
			})
			store := postgres.New(pool)
			if step.idle {
				terminate(t, admin, queryRow[int](t, pool, `SELECT pg_backend_pid()`))
				step.work = func(pgx.Tx) error { t.Error("work was called"); return nil }
			}
			wantIs(t, store.Atomic(t.Context(), claimsOf(name), effectOf(name, step.work)), step.want)
			if got := verdictOf(t, store, name); got != idempotency.Fresh || effects(t, admin, name) != 1 {
				t.Errorf("%v afterwards, %d effects", got, effects(t, admin, name))
			}
		})
	}
}

func TestTimeoutOfTheWorksOwnContextIsItsOwnFailure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one))
	err := store.Atomic(t.Context(), claimsOf("a"), effectOf("a", func(tx pgx.Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := tx.Exec(ctx, `SELECT pg_sleep(600)`)
		return err
	}))
	// It says nothing of the store: an attempt that fails like this counts.
	wantIs(t, err, context.DeadlineExceeded)
	if errors.Is(err, idempotency.ErrUnavailable) {
		t.Errorf("taken for an outage: %v", err)
	}
	if got := verdictOf(t, store, "a"); got != idempotency.Fresh || effects(t, admin, "a") != 1 {
		t.Errorf("%v afterwards", got)
	}
}

// TestHungWorkFreesItsClaimAndItsPlaceInThePool: whether it hangs by itself or in
// a statement that does not heed the context.
func TestHungWorkFreesItsClaimAndItsPlaceInThePool(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	never := make(chan struct{})
	for name, hang := range map[string]func(tx pgx.Tx) error{
		"by itself":      func(pgx.Tx) error { <-never; return nil },
		"in a statement": func(tx pgx.Tx) error { _, err := tx.Exec(context.Background(), `SELECT pg_sleep(600)`); return err },
	} {
		t.Run(name, func(t *testing.T) {
			store := postgres.New(newPool(t, url, one))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			pids, done := make(chan int, 1), make(chan error, 1)
			go func() {
				done <- store.Atomic(ctx, claimsOf(name), effectOf(name, func(tx pgx.Tx) error { //nolint:contextcheck // Deaf to ctx: that is the test.
					pids <- backendOf(t, tx)
					return hang(tx)
				}))
			}()
			pid := within(t, "the start of the work", pids)
			lost := errors.New("partition was revoked")
			cancel(lost)
			gone(t, admin, pid)
			if got := verdictOf(t, store, name); got != idempotency.Fresh || effects(t, admin, name) != 1 {
				t.Errorf("%v while the work hangs", got)
			}
			if name == "by itself" {
				close(never)
			}
			err := within(t, "the end of Atomic", done)
			wantIs(t, err, context.Canceled)
			wantIs(t, err, lost)
		})
	}
}

func TestDeferredConstraintIsTheWorksFailure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	store := postgres.New(newPool(t, url, one))
	err := store.Atomic(t.Context(), claimsOf("a"), effectOf("a", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO child VALUES (1)`)
		return err
	}))
	var server *pgconn.PgError
	if !errors.As(err, &server) || server.Code != "23503" || errors.Is(err, idempotency.ErrCommitUnknown) || errors.Is(err, idempotency.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if got := verdictOf(t, store, "a"); got != idempotency.Fresh {
		t.Errorf("%v afterwards", got)
	}
}

func TestTwoPrunersNeverWorkAtOnce(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url))
	verdictOf(t, store, "a")
	verdictOf(t, store, "b")
	execute(t, admin, `UPDATE onceward.record SET expires_at = now() - interval '1 hour'`)

	// A pruner that is stuck on a locked row still holds the pruners' lock.
	held, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if _, err := held.Exec(t.Context(), `SELECT FROM onceward.record WHERE key = 'a' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	first := make(chan error, 1)
	go func() { _, err := store.Prune(context.Background(), 10); first <- err }()
	eventually(t, "the first pruner's wait", func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	if n, err := store.Prune(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("the second pruned %d, error %v", n, err)
	}
	_ = held.Rollback(context.Background())
	if err := within(t, "the first pruner's end", first); err != nil {
		t.Fatal(err)
	}
}

func TestStoppedServerIsUnavailableAndComesBack(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t)
	url := server.Database()
	pool := newPool(t, url)
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, effectTable)
	verdictOf(t, store, "a")
	err := store.Atomic(t.Context(), claimsOf("b"), effectOf("b", func(pgx.Tx) error { server.Kill(); return nil }))
	wantIs(t, err, idempotency.ErrCommitUnknown)
	wantIs(t, store.Atomic(t.Context(), claimsOf("c"), effectOf("c")), idempotency.ErrUnavailable)
	wantIs(t, store.Check(t.Context()), idempotency.ErrUnavailable)
	server.Start()
	if got := verdictOf(t, store, "a"); got != idempotency.Duplicate {
		t.Errorf("%v after the restart", got)
	}
	if got := verdictOf(t, store, "b"); got != idempotency.Fresh || effects(t, pool, "b") != 1 {
		t.Errorf("%v for what was not committed", got)
	}
}
