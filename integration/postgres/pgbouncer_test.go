package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// fewServers puts many clients on few connections, so that two transactions of
// one client rarely run on the same.
var fewServers = map[string]string{"default_pool_size": "3"}

// oneServer puts all clients on one connection: each meets what another has left.
var oneServer = map[string]string{"default_pool_size": "1"}

// TestEachSafeModeThroughPgBouncer makes exactly one effect of each message,
// with 12 clients on 3 server connections.
func TestEachSafeModeThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	through := stack.PgBouncer(t, url, fewServers)
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			url := withSetting(through, "default_query_exec_mode="+mode)
			t.Run("pgx", func(t *testing.T) {
				pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 12 })
				store := postgres.New(pool)
				crowd(t, store, admin, "pgx-"+mode, func(ctx context.Context, tx pgx.Tx, name string) error {
					_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, name)
					return err
				})
				if err := everything(t, store); err != nil {
					t.Error(err)
				}
				execute(t, admin, `DELETE FROM onceward.record; DELETE FROM onceward.attempt`)
			})
			t.Run("sql", func(t *testing.T) {
				db := newSQLPool(t, url)
				db.SetMaxOpenConns(12)
				db.SetMaxIdleConns(12)
				crowd(t, postgres.NewSQL(db), admin, "sql-"+mode, func(ctx context.Context, tx *sql.Tx, name string) error {
					_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`, name)
					return err
				})
			})
		})
	}
}

// crowd sends each of 24 messages by four of 12 clients, alone and in batches,
// beside clients that use the other methods.
func crowd[Tx any](t *testing.T, store inbox.Store[Tx], admin *pgxpool.Pool, prefix string, add func(ctx context.Context, tx Tx, name string) error) {
	t.Helper()
	const clients, messages, copies = 12, 24, 4
	var fresh atomic.Int32
	var all sync.WaitGroup
	errs := make(chan error, clients)
	for client := range clients {
		all.Go(func() {
			errs <- func() error {
				for i := client / copies; i < messages; i += clients / copies {
					size := 1 + client%2*4
					var keys []string
					for j := range size {
						keys = append(keys, fmt.Sprintf("%s-%d", prefix, (i+j*7)%messages))
					}
					claims := claimsOf(slices.Compact(keys)...)
					for n := range claims {
						claims[n].Fingerprint = []byte(claims[n].Key)
					}
					err := store.Atomic(t.Context(), claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
						for n, verdict := range verdicts {
							switch verdict {
							case idempotency.Fresh:
								fresh.Add(1)
								if err := add(ctx, tx, claims[n].Key); err != nil {
									return err
								}
							case idempotency.Reused:
								return fmt.Errorf("%s was reused by itself", claims[n].Key)
							case idempotency.Duplicate:
							}
						}
						_, err := store.ParkedKeys(ctx, tx, "billing", "orders", [][]byte{[]byte("k")})
						return err
					})
					if err != nil {
						return err
					}
					if _, err := store.CountAttempt(t.Context(), prefix, strconv.Itoa(i), "cause", retention); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	const each = `SELECT count(*) FROM effect WHERE name LIKE $1 || '-%'`
	const names = `SELECT count(DISTINCT name) FROM effect WHERE name LIKE $1 || '-%'`
	rows, distinct := queryRow[int](t, admin, each, prefix), queryRow[int](t, admin, names, prefix)
	if rows != messages || distinct != messages || fresh.Load() != messages {
		t.Errorf("%d effects of %d messages, %d were fresh, of %d", rows, distinct, fresh.Load(), messages)
	}
	const counted = `SELECT sum(attempts)::int FROM onceward.attempt WHERE scope = $1`
	if got := queryRow[int](t, admin, counted, prefix); got != messages*copies {
		t.Errorf("%d attempts were counted, of %d", got, messages*copies)
	}
}

// TestModeThatPgBouncerBreaksIsNamedWithItsCure for each statement of the store
// and one of the work: cache_statement, pgx's default, gives each a name, and on
// the one server connection somebody else has given that name before.
func TestModeThatPgBouncerBreaksIsNamedWithItsCure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	through := stack.PgBouncer(t, url, oneServer)
	client := newPool(t, withSetting(through, "default_query_exec_mode=exec"), one)
	freshly := func() error {
		execute(t, admin, `TRUNCATE onceward.record, onceward.attempt, onceward.dead_letter, onceward.parked_key`)
		return everything(t, postgres.New(newPool(t, through, one)))
	}
	if err := freshly(); err != nil {
		t.Fatalf("alone on a new connection: %v", err)
	}
	rows, _ := client.Query(t.Context(), `SELECT name FROM pg_prepared_statements ORDER BY prepare_time`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 20 {
		t.Fatalf("%d prepared statements, error %v: not all were seen", len(names), err)
	}
	for _, name := range names {
		execute(t, client, `DEALLOCATE ALL`)
		execute(t, client, `PREPARE `+pgx.Identifier{name}.Sanitize()+` AS SELECT`)
		wantNamed(t, freshly(), "42P05")
	}
}

// TestStatementThatTheServerHasForgottenIsNamedWithItsCure: a client prepared it on
// a server connection that is no more.
func TestStatementThatTheServerHasForgottenIsNamedWithItsCure(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	through := stack.PgBouncer(t, url, oneServer)
	client := newPool(t, withSetting(through, "default_query_exec_mode=exec"), one)
	pool, db := newPool(t, through, one), newSQLPool(t, through)
	db.SetMaxOpenConns(1)
	store, sqlStore := postgres.New(pool), postgres.NewSQL(db)
	key := 0
	atomic := func() error {
		key++
		return store.Atomic(t.Context(), claimsOf(strconv.Itoa(key)), effectOf("a"))
	}
	sqlAtomic := func() error {
		key++
		return sqlStore.Atomic(t.Context(), claimsOf(strconv.Itoa(key)), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`, "b")
			return err
		})
	}
	for what, run := range map[string]func() error{"pgx": atomic, "database/sql": sqlAtomic} {
		execute(t, client, `DEALLOCATE ALL`)
		if err := run(); err != nil {
			t.Fatalf("%s: alone on a new connection: %v", what, err)
		}
		execute(t, client, `DEALLOCATE ALL`)
		wantNamed(t, run(), "26000")
	}
	// The work's own statement, once the client has prepared all of them anew.
	eventually(t, "the end of the failures", func() bool {
		err := atomic()
		if err != nil {
			wantNamed(t, err, "26000")
		}
		return err == nil
	})
	for _, name := range statementsLike(t, client, `%INTO effect%`) {
		execute(t, client, `DEALLOCATE `+pgx.Identifier{name}.Sanitize())
	}
	err := atomic()
	wantNamed(t, err, "26000")
	if err != nil && !strings.Contains(err.Error(), "statement of the work") {
		t.Errorf("got %v, want it to say whose statement it was", err)
	}
}

func statementsLike(t *testing.T, pool *pgxpool.Pool, pattern string) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), `SELECT name FROM pg_prepared_statements WHERE statement LIKE $1`, pattern)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		t.Fatalf("%d prepared statements, error %v", len(names), err)
	}
	return names
}

func wantNamed(t *testing.T, err error, state string) {
	t.Helper()
	var server *pgconn.PgError
	if !errors.Is(err, idempotency.ErrUnavailable) || !errors.As(err, &server) || server.Code != state ||
		!strings.Contains(err.Error(), "default_query_exec_mode=exec") || !strings.Contains(err.Error(), "max_prepared_statements") {
		t.Errorf("got %v, want an outage by SQLSTATE %s with its cure", err, state)
	}
}

func TestStoreMigratesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	through := withSetting(stack.PgBouncer(t, stack.Postgres(t), fewServers), "default_query_exec_mode=exec")
	store := postgres.New(newPool(t, through))
	if err := errors.Join(store.Migrate(t.Context()), store.Migrate(t.Context()), store.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
}
