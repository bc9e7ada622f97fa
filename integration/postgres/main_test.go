package postgres_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }

const (
	// soon is how long a test waits for what must happen.
	soon      = 60 * time.Second
	retention = 7 * 24 * time.Hour
	scope     = "billing/orders"
)

// effectTable is where tests write what was carried out. Rows are not unique:
// doing a thing twice must show.
const effectTable = `CREATE TABLE effect (name text NOT NULL)`

// newPool opens a pool that is closed after the test.
func newPool(t *testing.T, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	for _, c := range configure {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newSQLPool(t *testing.T, url string, configure ...func(*pgx.ConnConfig)) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configure {
		c(config)
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newDatabase makes a migrated database with the effect table. admin is a pool
// of the test's own, not the one under test.
func newDatabase(t *testing.T) (url string, admin *pgxpool.Pool) {
	t.Helper()
	url = stack.Postgres(t)
	admin = newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 4 })
	if err := postgres.New(admin).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, effectTable)
	return url, admin
}

func execute(t *testing.T, pool *pgxpool.Pool, statement string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func queryRow[T any](t *testing.T, pool *pgxpool.Pool, statement string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

func effects(t *testing.T, admin *pgxpool.Pool, name string) int {
	t.Helper()
	return queryRow[int](t, admin, `SELECT count(*) FROM effect WHERE name = $1`, name)
}

func claimsOf(keys ...string) []idempotency.Claim {
	claims := make([]idempotency.Claim, len(keys))
	for i, key := range keys {
		claims[i] = idempotency.Claim{Scope: scope, Key: key, Retention: retention}
	}
	return claims
}

// all selects every dead letter. A limit stands in every filter that reaches a store.
var all = inbox.Filter{Limit: 1000}

// work is what Atomic runs.
type work func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error

// effectOf adds an effect, and goes on with then.
func effectOf(name string, then ...func(tx pgx.Tx) error) work {
	return func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, name); err != nil {
			return err
		}
		for _, f := range then {
			if err := f(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// verdictOf claims key and adds its effect if it is fresh.
func verdictOf(t *testing.T, store *postgres.Store, key string) (verdict idempotency.Verdict) {
	t.Helper()
	err := store.Atomic(t.Context(), claimsOf(key), func(ctx context.Context, tx pgx.Tx, verdicts []idempotency.Verdict) error {
		if verdict = verdicts[0]; verdict != idempotency.Fresh {
			return nil
		}
		return effectOf(key)(ctx, tx, verdicts)
	})
	if err != nil {
		t.Fatalf("claim of %q: %v", key, err)
	}
	return verdict
}

// within fails the test unless it receives in time.
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

// eventually asks again and again until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(soon)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come about within %v", what, soon)
		}
		<-tick.C
	}
}

// withSetting is a URL with one more setting.
func withSetting(url, setting string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + setting
}
