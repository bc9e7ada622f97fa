package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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

// TestEachSafeModeThroughPgBouncer makes exactly one effect of each message,
// with 24 clients on 3 server connections.
func TestEachSafeModeThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	through := stack.PgBouncer(t, url, fewServers)
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			url := withSetting(through, "default_query_exec_mode="+mode)
			t.Run("pgx", func(t *testing.T) {
				pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 24 })
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
				db.SetMaxOpenConns(24)
				db.SetMaxIdleConns(24)
				crowd(t, postgres.NewSQL(db), admin, "sql-"+mode, func(ctx context.Context, tx *sql.Tx, name string) error {
					_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`, name)
					return err
				})
			})
		})
	}
}

// crowd sends each of 60 messages by four of 24 clients, alone and in batches,
// beside clients that use the other methods.
func crowd[Tx any](t *testing.T, store inbox.Store[Tx], admin *pgxpool.Pool, prefix string, add func(ctx context.Context, tx Tx, name string) error) {
	t.Helper()
	const clients, messages, copies = 24, 60, 4
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
					if _, err := store.CountAttempt(t.Context(), prefix, fmt.Sprint(i), "cause", retention); err != nil {
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
	if rows, distinct := queryRow[int](t, admin, each, prefix), queryRow[int](t, admin, names, prefix); rows != messages || distinct != messages || fresh.Load() != messages {
		t.Errorf("%d effects of %d messages, %d were fresh, of %d", rows, distinct, fresh.Load(), messages)
	}
	const counted = `SELECT sum(attempts)::int FROM onceward.attempt WHERE scope = $1`
	if got := queryRow[int](t, admin, counted, prefix); got != messages*copies {
		t.Errorf("%d attempts were counted, of %d", got, messages*copies)
	}
}

// TestModeThatPgBouncerBreaksIsNamedWithItsCure: cache_statement is pgx's default.
func TestModeThatPgBouncerBreaksIsNamedWithItsCure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	pool := newPool(t, stack.PgBouncer(t, url, fewServers), func(c *pgxpool.Config) { c.MaxConns = 24 })
	store := postgres.New(pool)
	var broken error
	for round := range 50 {
		errs := make([]error, 24)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				name := fmt.Sprintf("%d-%d", round, i/2)
				errs[i] = store.Atomic(t.Context(), claimsOf(name), func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error {
					if verdicts[0] != idempotency.Fresh {
						return nil
					}
					_, err := tx.Exec(ctx, `INSERT INTO effect SELECT '`+name+`'`)
					return err
				})
			})
		}
		all.Wait()
		if broken = errors.Join(errs...); broken != nil {
			for _, err := range errs {
				if err != nil && !isNamed(err) {
					t.Errorf("got %v", err)
				}
			}
			break
		}
	}
	if broken == nil {
		t.Error("PgBouncer carried prepared statements: this test proves nothing")
	}
	if rows := queryRow[int](t, admin, `SELECT count(*) - count(DISTINCT name) FROM effect`); rows != 0 {
		t.Errorf("%d effects too many", rows)
	}
}

func isNamed(err error) bool {
	var server *pgconn.PgError
	return errors.Is(err, idempotency.ErrUnavailable) && errors.As(err, &server) && (server.Code == "42P05" || server.Code == "26000") &&
		strings.Contains(err.Error(), "default_query_exec_mode=exec") && strings.Contains(err.Error(), "max_prepared_statements")
}

func TestStoreMigratesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	through := withSetting(stack.PgBouncer(t, stack.Postgres(t), fewServers), "default_query_exec_mode=exec")
	store := postgres.New(newPool(t, through))
	if err := errors.Join(store.Migrate(t.Context()), store.Migrate(t.Context()), store.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
}
