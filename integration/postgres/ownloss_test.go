package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// endings are what a work makes of an error of its statement.
var endings = map[string]func(error) error{
	"returned":  func(err error) error { return err },
	"opaque":    func(err error) error { return fmt.Errorf("look up: %v", err) }, //nolint:errorlint // That is the test.
	"domain":    func(error) error { return errors.New("customer not found") },
	"swallowed": func(error) error { return nil },
}

func shortly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 20*time.Millisecond)
}

// wantOwn fails unless err is a failure of the work, which an inbox counts.
func wantOwn(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.Is(err, idempotency.ErrUnavailable) || errors.Is(err, idempotency.ErrCommitUnknown) {
		t.Errorf("got %v, want the work's own failure", err)
	}
}

// TestConnectionLostByTheWorkIsItsOwnFailure: an outage spends no attempts, and
// a message that made one each time it is handled would hold up its partition for ever.
func TestConnectionLostByTheWorkIsItsOwnFailure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	for name, lose := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"exec": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT pg_sleep(600)`); return err },
		"row": func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT 1 FROM pg_sleep(600)`).Scan(new(int))
		},
		"batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`SELECT pg_sleep(600)`)
			return tx.SendBatch(ctx, b).Close()
		},
		"rows": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT 1 FROM pg_sleep(600)`)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT pg_sleep(600)`); return err })
		},
		"beneath": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, `SELECT pg_sleep(600)`)
			return err
		},
		"closed": func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
	} {
		for how, end := range endings {
			if name == "closed" && how == "returned" {
				continue // There is no error.
			}
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				store := postgres.New(newPool(t, url, one))
				err := store.Atomic(t.Context(), claimsOf(name+how), effectOf(name+how, func(tx pgx.Tx) error {
					ctx, stop := shortly(t.Context())
					defer stop()
					return end(lose(ctx, tx))
				}))
				wantOwn(t, err)
				if got := verdictOf(t, store, name+how); got != idempotency.Fresh || effects(t, admin, name+how) != 1 {
					t.Errorf("%v afterwards", got)
				}
			})
		}
	}
	for how, end := range endings {
		t.Run("sql "+how, func(t *testing.T) {
			t.Parallel()
			db := newSQLPool(t, url)
			db.SetMaxOpenConns(1)
			err := postgres.NewSQL(db).Atomic(t.Context(), nil, func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
				ctx, stop := shortly(ctx)
				defer stop()
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(600)`)
				return end(err)
			})
			wantOwn(t, err)
		})
	}
}

// TestServerThatGoesDuringTheWorkIsAnOutage, though a statement with a context of
// the work's own noticed it, and even if the server is back at once.
func TestServerThatGoesDuringTheWorkIsAnOutage(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t)
	pool, db := newPool(t, server.Database()), newSQLPool(t, server.Database())
	if err := postgres.New(pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	restart := func() { server.Kill(); server.Start() }
	for how, end := range endings {
		err := postgres.New(pool).Atomic(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
			restart()
			ctx, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			_, err := tx.Exec(ctx, `SELECT 1`)
			return end(err)
		})
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Errorf("pgx, %s: %v", how, err)
		}
		err = postgres.NewSQL(db).Atomic(t.Context(), nil, func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
			restart()
			_, err := tx.ExecContext(ctx, `SELECT 1`)
			return end(err)
		})
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Errorf("database/sql, %s: %v", how, err)
		}
	}
}

func TestWorkThatCallsRollbackIsNotCommitted(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one))
	for name, c := range map[string]struct {
		call func(ctx context.Context, tx pgx.Tx)
		says string
	}{
		"rollback":            {func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) }, "called Rollback and returned nil"},
		"commit":              {func(ctx context.Context, tx pgx.Tx) { _ = tx.Commit(ctx) }, ""},
		"commit and deferred": {func(ctx context.Context, tx pgx.Tx) { _ = tx.Commit(ctx); _ = tx.Rollback(ctx) }, ""},
	} {
		err := store.Atomic(t.Context(), nil, effectOf(name, func(tx pgx.Tx) error { c.call(t.Context(), tx); return nil }))
		if want := c.says == ""; (err == nil) != want || !want && !strings.Contains(err.Error(), c.says) || (effects(t, admin, name) == 1) != want {
			t.Errorf("%s: %v, %d effects", name, err, effects(t, admin, name))
		}
	}
}

func TestNothingRunsAfterTheWorkHasChainedATransaction(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one))
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"exec": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `COMMIT; BEGIN`); return err },
		"comment": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `ROLLBACK AND CHAIN -- go back to`)
			return err
		},
		"query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `COMMIT AND CHAIN`)
			rows.Close()
			return err
		},
		"batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`COMMIT AND CHAIN`)
			return tx.SendBatch(ctx, b).Close()
		},
	} {
		err := store.Atomic(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error {
			if err := end(ctx, tx); err != nil {
				return err
			}
			return effectOf(name)(ctx, tx, verdicts)
		})
		if wantIs(t, err, idempotency.ErrTransactionEnded); effects(t, admin, name) != 0 {
			t.Errorf("%s: a statement ran outside the transaction", name)
		}
	}
}

// TestGoroutineLeftOnASQLTransactionEndsSoon: Atomic doesn't wait for its statement.
func TestGoroutineLeftOnASQLTransactionEndsSoon(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.NewSQL(newSQLPool(t, url))
	own := errors.New("card declined")
	for _, result := range []error{nil, own} {
		done := make(chan error, 1)
		go func() {
			done <- store.Atomic(context.Background(), nil, func(_ context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
				go func() { _, _ = tx.ExecContext(context.Background(), `SELECT pg_sleep(600)`) }() //nolint:gosec // Deaf to ctx: that is the test.
				eventually(t, "the statement of the goroutine", func() bool {
					return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'
						AND state = 'active' AND datname = current_database()`) == 1
				})
				return result
			})
		}()
		err := within(t, "the end of Atomic", done)
		if err == nil || !strings.Contains(err.Error(), "goroutines") || !errors.Is(err, result) && result != nil {
			t.Errorf("got %v", err)
		}
		eventually(t, "the end of the statement", func() bool {
			return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'
				AND state = 'active' AND datname = current_database()`) == 0
		})
	}
}
