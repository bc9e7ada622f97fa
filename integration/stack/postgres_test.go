package stack_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/integration/stack"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	a, b := connect(t, stack.Postgres(t)), connect(t, stack.Postgres(t))
	mustExec(t, a, "CREATE TABLE seen (id int)")
	mustExec(t, b, "CREATE TABLE seen (id int)")
	mustExec(t, a, "INSERT INTO seen VALUES (1)")
	var n int
	if err := b.QueryRow(t.Context(), "SELECT count(*) FROM seen").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("a row of one database is visible in the other")
	}
}

func TestDatabaseIsDroppedWithItsTestDespiteOpenConnections(t *testing.T) {
	t.Parallel()
	var gone string
	t.Run("inner", func(t *testing.T) {
		gone = stack.Postgres(t)
		if _, err := pgx.Connect(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	})
	_, err := pgx.Connect(t.Context(), gone)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "3D000" {
		t.Errorf("connecting to the database of a finished test: %v, want 3D000 (no such database)", err)
	}
}

func TestPostgresKeepsPortAndDataOverKillAndStop(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t)
	database := server.Database()
	mustExec(t, connect(t, database), "CREATE TABLE seen (id int)")

	for _, end := range []struct {
		name string
		do   func()
	}{{"Kill", server.Kill}, {"Stop", server.Stop}} {
		open := connect(t, database)
		mustExec(t, open, "INSERT INTO seen VALUES (1)")
		end.do()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := open.Exec(ctx, "SELECT 1"); err == nil {
			t.Errorf("after %s an open session still answers", end.name)
		}
		if _, err := pgx.Connect(ctx, database); err == nil {
			t.Errorf("after %s the server still takes connections", end.name)
		}
		cancel()
		server.Start()
	}

	var n int
	if err := connect(t, database).QueryRow(t.Context(), "SELECT count(*) FROM seen").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		t.Errorf("%d rows after two restarts, want the 2 that were committed", n)
	}
}
