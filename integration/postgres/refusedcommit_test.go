package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestCommitRefusedForAnotherDatabaseIsTheWorksFailure: with SQLSTATEs of connections, as postgres_fdw and dblink have
// them. Taken for a lost commit, such a message would stand in the way of the others for ever, and spend no attempts.
func TestCommitRefusedForAnotherDatabaseIsTheWorksFailure(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `
		CREATE TABLE remote (name text);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN RAISE 'could not connect to server' USING ERRCODE = '08001'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON remote DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	const insert = `INSERT INTO remote VALUES ('a')`
	over := postgres.New(newPool(t, url))
	overSQL := postgres.NewSQL(newSQLPool(t, url))
	for name, atomic := range map[string]func() error{
		"Pgx": func() error {
			return over.Atomic(t.Context(), claimsOf("a"), func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
				_, err := tx.Exec(ctx, insert)
				return err
			})
		},
		"SQL": func() error {
			return overSQL.Atomic(t.Context(), claimsOf("a"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
				_, err := tx.ExecContext(ctx, insert)
				return err
			})
		},
	} {
		err := atomic()
		var server *pgconn.PgError
		if !errors.As(err, &server) || server.Code != "08001" || errors.Is(err, idempotency.ErrCommitUnknown) || errors.Is(err, idempotency.ErrUnavailable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	in := inbox.New(over, "billing", func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
		_, err := tx.Exec(ctx, insert)
		return err
	}, inbox.MaxAttempts(1))
	results, err := in.Process(t.Context(), []inbox.Message{{ID: "b", Source: "orders", Topic: "orders"}})
	if err != nil || results[0].Outcome != inbox.Parked {
		t.Errorf("%v, error %v, want it to be parked", results, err)
	}
}
