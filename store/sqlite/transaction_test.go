package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// The same as through tx.Commit and tx.Rollback, which the suite tries: SQL text
// can end a transaction where database/sql does not see it.
func TestWorkThatEndsTheTransactionBySQLIsTold(t *testing.T) {
	t.Parallel()
	errWork := errors.New("work failed")
	for _, c := range []struct {
		sql    string
		result error
		next   idempotency.Verdict
	}{
		{"COMMIT", nil, idempotency.Duplicate},
		{"ROLLBACK", nil, idempotency.Fresh},
		{"COMMIT", errWork, idempotency.Duplicate},
		{"ROLLBACK", errWork, idempotency.Fresh},
	} {
		t.Run(fmt.Sprint(c.sql, c.result), func(t *testing.T) {
			t.Parallel()
			store := newDatabase(t).open(t, time.Minute)
			err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
				if _, err := tx.ExecContext(ctx, c.sql); err != nil {
					return err
				}
				return c.result
			})
			wantIs(t, err, idempotency.ErrTransactionEnded)
			if c.result != nil {
				wantIs(t, err, c.result)
			}
			err = store.Atomic(t.Context(), claim("a"), func(_ context.Context, _ *sql.Tx, verdicts []idempotency.Verdict) error {
				if verdicts[0] != c.next {
					t.Errorf("the next claim is %v, want %v", verdicts[0], c.next)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestConstraintThatFailsAtCommitRollsBackAndTheConnectionServesOn(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	if _, err := d.db.ExecContext(t.Context(), `
		CREATE TABLE parent (id INTEGER PRIMARY KEY);
		CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	store := d.open(t, time.Minute)
	err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES (1)`)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
		t.Fatalf("error %v, want the broken constraint", err)
	}
	// It is the work's fault: no outage, no doubt.
	for _, sentinel := range []error{idempotency.ErrUnavailable, idempotency.ErrCommitUnknown, idempotency.ErrTransactionEnded} {
		if errors.Is(err, sentinel) {
			t.Errorf("error is %q", sentinel)
		}
	}
	err = store.Atomic(t.Context(), claim("a"), func(_ context.Context, _ *sql.Tx, verdicts []idempotency.Verdict) error {
		if verdicts[0] != idempotency.Fresh {
			t.Errorf("the next claim is %v", verdicts[0])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A bound on the file's pages is a full disk to SQLite.
func TestFullDiskIsUnavailableAndLosesNothing(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	fill := func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effect (name) VALUES (hex(zeroblob(1000000)))`)
		return err
	}
	limit := func(pages string) {
		t.Helper()
		err := store.Atomic(t.Context(), nil, func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
			_, err := tx.ExecContext(ctx, `PRAGMA max_page_count = `+pages)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // No less than it has now.
	wantIs(t, store.Atomic(t.Context(), claim("a"), fill), idempotency.ErrUnavailable)
	limit("1000000")
	err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, verdicts []idempotency.Verdict) error {
		if verdicts[0] != idempotency.Fresh {
			t.Errorf("after the disk was full: %v", verdicts[0])
		}
		return fill(ctx, tx, verdicts)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWriteLockOfTheApplicationIsInProgress(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	store := d.open(t, 50*time.Millisecond)
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantIs(t, store.Atomic(t.Context(), claim("a"), nothing), idempotency.ErrInProgress)
	_, err = store.CountAttempt(t.Context(), "s", "k", "cause", time.Hour)
	wantIs(t, err, idempotency.ErrInProgress)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := d.open(t, time.Minute).Atomic(t.Context(), claim("a"), nothing); err != nil {
		t.Fatal(err)
	}
}

func TestHandlerMayReadBesideItsTransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	store := d.open(t, time.Minute)
	err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
		if err := d.AddEffect(ctx, tx, "a"); err != nil {
			return err
		}
		for range 50 { // More than any bound on a pool: none may run out.
			rows, err := store.DB().QueryContext(ctx, `SELECT name FROM effect`)
			if err != nil {
				return err
			}
			defer rows.Close()
			if rows.Next() {
				t.Error("what is not committed can be seen")
			}
			if err := rows.Err(); err != nil {
				return err
			}
		}
		return store.Check(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.CountEffects(t, "a"); got != 1 {
		t.Errorf("%d effects", got)
	}
}

func TestRowsLeftOpenByWorkDoNotBlockTheStore(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"commit": nil, "rollback": errors.New("work failed")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			store := d.open(t, time.Minute)
			for i := range 3 {
				err := store.Atomic(t.Context(), claim(strconv.Itoa(i)), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
					rows, err := tx.QueryContext(ctx, `SELECT 1 UNION ALL SELECT 2`) //nolint:rowserrcheck,sqlclosecheck // Left open: that is the test.
					if err != nil {
						return err
					}
					rows.Next()
					return result
				})
				if !errors.Is(err, result) {
					t.Fatal(err)
				}
			}
		})
	}
}

// The one deadlock an embedded store invites must end, and name itself.
func TestHandlerThatWritesBesideItsTransactionFailsAfterTheWait(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, 50*time.Millisecond)
	err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, _ *sql.Tx, _ []idempotency.Verdict) error {
		if _, err := store.DB().ExecContext(ctx, `INSERT INTO effect (name) VALUES ('beside')`); err == nil || !strings.Contains(err.Error(), "locked") {
			t.Errorf("write through DB: %v", err)
		}
		_, err := store.CountAttempt(ctx, "s", "k", "cause", time.Hour)
		return err
	})
	wantIs(t, err, idempotency.ErrInProgress)
}

func TestErrorOfAnotherDatabaseIsNoOutageOfThisOne(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	err := store.Atomic(t.Context(), claim("a"), func(context.Context, *sql.Tx, []idempotency.Verdict) error {
		return fmt.Errorf("warehouse: %w", driver.ErrBadConn)
	})
	wantIs(t, err, driver.ErrBadConn)
	if errors.Is(err, idempotency.ErrUnavailable) {
		t.Error("the store is blamed")
	}
}
