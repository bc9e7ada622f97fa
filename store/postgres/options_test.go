package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestOptionThatCannotWorkIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		option Option
		names  string
	}{
		{WithSchema(""), "WithSchema"},
		{WithSchema(strings.Repeat("x", 64)), "63"},
		{WithSchema("a\x00"), "NUL"},
		{WithSchema("\xff"), "UTF-8"},
		{WithSchema("pg_onceward"), "pg_"},
		{WithClaimWait(0), "WithClaimWait"},
		{WithClaimWait(time.Microsecond), "1ms"},
		{WithClaimWait(1000 * time.Hour), "WithClaimWait"},
		{WithCommitDeadline(-1), "WithCommitDeadline"},
	} {
		_, err := newSettings([]Option{c.option})
		wantNamed(t, "newSettings", err, c.names)
	}
	if _, err := newSettings([]Option{nil}); err != nil {
		t.Error(err)
	}
}

func wantNamed(t *testing.T, doing string, err error, name string) {
	t.Helper()
	// An outage: it must not be counted as an attempt of a message.
	if !errors.Is(err, idempotency.ErrUnavailable) || !strings.Contains(err.Error(), name) {
		t.Errorf("%s: got %v, want it to name %s", doing, err, name)
	}
}

// TestStoreThatCannotWorkSaysSoInEveryCall instead of a panic at the start.
func TestStoreThatCannotWorkSaysSoInEveryCall(t *testing.T) {
	t.Parallel()
	// Nobody listens there, and nobody is asked.
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	everyCallFails(t, New(pool, WithClaimWait(0)), "WithClaimWait")
	everyCallFails(t, NewSQL(db, WithCommitDeadline(0)), "WithCommitDeadline")
	everyCallFails(t, New(nil), "pool is nil")
	everyCallFails(t, NewSQL(nil, WithSchema("")), "database is nil")
	everyCallFails(t, NewSQL(nil, WithSchema("")), "WithSchema")
}

func everyCallFails[Tx any](t *testing.T, d *Database[Tx], name string) {
	t.Helper()
	ctx := t.Context()
	var none Tx
	_, count := d.CountAttempt(ctx, "s", "k", "cause", time.Hour)
	_, parked := d.ParkedKeys(ctx, none, "billing", "orders", [][]byte{{}})
	_, list := d.DeadLetters(ctx, "billing", inbox.Filter{Limit: 1})
	_, discard := d.DiscardDeadLetters(ctx, "billing", inbox.Filter{Limit: 1})
	_, prune := d.Prune(ctx, 1)
	for doing, err := range map[string]error{
		"Check": d.Check(ctx), "Migrate": d.Migrate(ctx), "CountAttempt": count, "ParkedKeys": parked,
		"DeadLetters": list, "DiscardDeadLetters": discard, "Prune": prune, "FailDeadLetter": d.FailDeadLetter(ctx, "billing", 1, "cause"),
		"Atomic":         d.Atomic(ctx, []idempotency.Claim{claimed("s", "k", nil)}, nil),
		"AddDeadLetters": d.AddDeadLetters(ctx, none, make([]inbox.DeadLetter, 1)),
		"TakeDeadLetter": d.TakeDeadLetter(ctx, "billing", 1, nil),
	} {
		wantNamed(t, doing, err, name)
	}
}

func TestSchemaIsQuoted(t *testing.T) {
	t.Parallel()
	d := &Database[struct{}]{settings: settings{schema: `My "own"`}}
	if got, want := d.sql(`SELECT FROM {schema}.record`), `SELECT FROM "My ""own""".record`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
