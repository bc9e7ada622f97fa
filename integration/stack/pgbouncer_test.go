package stack_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/integration/stack"
)

// In transaction mode with one server connection, a session setting of one client is seen by the next: the proof that the
// URL leads through PgBouncer, and in which mode.
func TestPgBouncerPoolsByTransaction(t *testing.T) {
	t.Parallel()
	direct := stack.Postgres(t)
	pooled := stack.PgBouncer(t, direct, map[string]string{"default_pool_size": "1"})
	mustExec(t, connect(t, direct), "CREATE TABLE seen (id int)")

	session := func() *pgx.Conn {
		config, err := pgx.ParseConfig(pooled)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	a, b := session(), session()
	pid := func(c *pgx.Conn) (pid int) {
		if err := c.QueryRow(t.Context(), "SELECT pg_backend_pid() FROM (SELECT count(*) FROM seen) s").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	if pid(a) != pid(b) {
		t.Error("two clients have two server connections: this is no pool of one")
	}
}

func TestPgBouncerKnowsNoPreparedStatementsUnlessAsked(t *testing.T) {
	t.Parallel()
	pooled := stack.PgBouncer(t, stack.Postgres(t), nil)
	a, b := connect(t, pooled), connect(t, pooled)
	var failure error
	for range 10 {
		for _, c := range []*pgx.Conn{a, b} { // both name their statements alike, on server connections they share
			if _, err := c.Exec(t.Context(), "SELECT $1::int", 1); err != nil {
				failure = err
			}
		}
	}
	if _, ok := errors.AsType[*pgconn.PgError](failure); !ok {
		t.Errorf("named statements through PgBouncer: %v, want PostgreSQL's own refusal", failure)
	}
}
