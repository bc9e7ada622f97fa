package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/store/postgres"
)

func TestWorkThatMisusesItsTransactionIsToldAndRolledBack(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	for name, misuse := range map[string]struct {
		work func(tx pgx.Tx) error
		says string
	}{
		"swallowed": {func(tx pgx.Tx) error { _, _ = tx.Exec(context.Background(), `SELECT 1/0`); return nil }, "savepoint"},
		"rows open": {func(tx pgx.Tx) error {
			_, err := tx.Query(context.Background(), `SELECT generate_series(1, 1000000)`) //nolint:sqlclosecheck // That is the misuse.
			return err
		}, "rows.Close"},
		"committed": {func(tx pgx.Tx) error { return tx.Commit(context.Background()) }, "Onceward's to end"},
		"rolled":    {func(tx pgx.Tx) error { return tx.Rollback(context.Background()) }, "Onceward's to end"},
		"goroutine": {func(tx pgx.Tx) error {
			go func() { _, _ = tx.Exec(context.Background(), `SELECT pg_sleep(600)`) }()
			pid := 0
			eventually(t, "the statement of the goroutine", func() bool {
				return admin.QueryRow(context.Background(), `SELECT pid FROM pg_stat_activity
					WHERE query LIKE '%pg_sleep(600)%' AND state = 'active' AND pid <> pg_backend_pid()
					AND datname = current_database()`).Scan(&pid) == nil
			})
			return nil
		}, "goroutines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := postgres.New(newPool(t, url, one))
			err := store.Atomic(t.Context(), claimsOf(name), effectOf(name, misuse.work))
			if err == nil || !strings.Contains(err.Error(), misuse.says) {
				t.Errorf("got %v, want it to say %q", err, misuse.says)
			}
			// The connection, or its successor, is clean and the claim is free.
			if got := verdictOf(t, store, name); got != idempotency.Fresh || effects(t, admin, name) != 1 {
				t.Errorf("%v afterwards, %d effects", got, effects(t, admin, name))
			}
		})
	}
}

// TestWorkThatEndsTheTransactionInItsOwnWayIsTold, beside the ways that the suite
// tries: SQL text through database/sql, the connection beneath pgx, a transaction
// that begins where the other ended.
func TestWorkThatEndsTheTransactionInItsOwnWayIsTold(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store, sqlStore := postgres.New(newPool(t, url, one)), postgres.NewSQL(newSQLPool(t, url))
	own := errors.New("order not found")
	for name, end := range map[string]func(tx pgx.Tx) error{
		"beneath":   func(tx pgx.Tx) error { _, err := tx.Conn().Exec(t.Context(), `COMMIT`); return err },
		"chained":   func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), `COMMIT AND CHAIN`); return err },
		"restarted": func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), `COMMIT; BEGIN`); return err },
		"refused afterwards": func(tx pgx.Tx) error {
			_, _ = tx.Exec(t.Context(), `COMMIT`)
			_, err := tx.Exec(t.Context(), `SELECT 1`)
			return err
		},
	} {
		for then, result := range map[string]error{" and succeeds": nil, " and fails": own} {
			err := store.Atomic(t.Context(), claimsOf(name+then), effectOf(name+then, end, func(pgx.Tx) error { return result }))
			wantIs(t, err, idempotency.ErrTransactionEnded)
			if result != nil && name != "refused afterwards" {
				wantIs(t, err, result)
			}
			if got := verdictOf(t, store, name+then); got != idempotency.Duplicate || effects(t, admin, name+then) != 1 {
				t.Errorf("%s%s: %v afterwards", name, then, got)
			}
		}
	}
	for statement, next := range map[string]idempotency.Verdict{`COMMIT`: idempotency.Duplicate, `ROLLBACK`: idempotency.Fresh} {
		for then, result := range map[string]error{" and succeeds": nil, " and fails": own} {
			for _, end := range []bool{false, true} {
				key := fmt.Sprint(statement, then, end)
				ctx, cancel := context.WithCancel(t.Context())
				err := sqlStore.Atomic(ctx, claimsOf(key), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
					if _, err := tx.ExecContext(ctx, statement); err != nil {
						return err
					}
					if end {
						cancel()
					}
					return result
				})
				cancel()
				wantIs(t, err, idempotency.ErrTransactionEnded)
				if result != nil {
					wantIs(t, err, result)
				}
				if got := verdictOf(t, store, key); got != next {
					t.Errorf("%s: %v afterwards", key, got)
				}
			}
		}
	}
}

func TestSavepointsBelongToTheWork(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one))
	err := store.Atomic(t.Context(), claimsOf("a"), effectOf("a", func(tx pgx.Tx) error {
		err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT 1/0`)
			return err
		})
		if err == nil {
			return errors.New("no error")
		}
		return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO effect VALUES ('nested')`)
			return err
		})
	}))
	if err != nil || effects(t, admin, "a") != 1 || effects(t, admin, "nested") != 1 {
		t.Errorf("error %v", err)
	}
}

func TestLentTransactionIsWholePgx(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one))
	var leaked pgx.Tx
	var object uint32
	err := store.Atomic(t.Context(), claimsOf("a"), func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		leaked = tx
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"name"}, pgx.CopyFromRows([][]any{{"copied"}, {"copied"}})); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO effect VALUES ('batched')`)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if _, err := tx.Prepare(ctx, "mine", `SELECT 1`); err != nil {
			return err
		}
		objects := tx.LargeObjects()
		var err error
		if object, err = objects.Create(ctx, 0); err != nil {
			return err
		}
		if tx.Conn() == nil {
			return errors.New("no connection")
		}
		return nil
	})
	if err != nil || effects(t, admin, "copied") != 2 || effects(t, admin, "batched") != 1 {
		t.Fatalf("error %v", err)
	}
	if n := queryRow[int](t, admin, `SELECT count(*) FROM pg_largeobject_metadata WHERE oid = $1`, object); n != 1 {
		t.Error("the large object is lost")
	}

	ctx := t.Context()
	_, exec := leaked.Exec(ctx, `SELECT 1`)
	_, query := leaked.Query(ctx, `SELECT 1`) //nolint:sqlclosecheck // There are none.
	_, begin := leaked.Begin(ctx)
	_, prepare := leaked.Prepare(ctx, "late", `SELECT 1`)
	_, copied := leaked.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"name"}, pgx.CopyFromRows(nil))
	objects := leaked.LargeObjects()
	_, object2 := objects.Create(ctx, 0)
	for doing, err := range map[string]error{
		"Exec": exec, "Query": query, "QueryRow": leaked.QueryRow(ctx, `SELECT 1`).Scan(new(int)), "Begin": begin, "Prepare": prepare,
		"CopyFrom": copied, "LargeObjects": object2, "SendBatch": leaked.SendBatch(ctx, &pgx.Batch{}).Close(),
		"Commit": leaked.Commit(ctx), "Rollback": leaked.Rollback(ctx),
	} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s after the work: %v", doing, err)
		}
	}
	if leaked.Conn() != nil {
		t.Error("Conn after the work is a connection")
	}
}
