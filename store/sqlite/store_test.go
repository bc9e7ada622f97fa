package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
	"github.com/onceward/onceward/store/storetest"
)

// TestMain lets the test binary be the second process of process_test.go.
func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		beTheOtherProcess(path)
	}
	registerRunning()
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Database[*sql.Tx] {
		t.Helper()
		return newDatabase(t)
	})
}

// database is a file with the table of effects in it. Its stores don't flush:
// only a crash of the machine could tell.
type database struct {
	path string
	db   *sql.DB
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{path: filepath.Join(t.TempDir(), "store.db")}
	d.db = d.open(t, time.Minute).DB()
	if _, err := d.db.ExecContext(t.Context(), `CREATE TABLE effect (name TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) open(t *testing.T, claimWait time.Duration) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), d.path, sqlite.WithClaimWait(claimWait), sqlite.WithoutFsync())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return store
}

func (d *database) Open(t *testing.T, claimWait time.Duration) inbox.Store[*sql.Tx] {
	t.Helper()
	return d.open(t, claimWait)
}

func (d *database) AddEffect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect (name) VALUES (?)`, name)
	return err
}

func (d *database) CountEffects(t *testing.T, name string) (n int) {
	t.Helper()
	if err := d.db.QueryRowContext(t.Context(), `SELECT count(*) FROM effect WHERE name = ?`, name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (d *database) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (d *database) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }

func (d *database) Age(t *testing.T, by time.Duration) {
	t.Helper()
	for _, update := range []string{
		`UPDATE onceward_record SET claimed_at = claimed_at - ?1, expires_at = expires_at - ?1`,
		`UPDATE onceward_attempt SET counted_at = counted_at - ?1, expires_at = expires_at - ?1`,
		`UPDATE onceward_dead_letter SET created_at = created_at - ?1`,
	} {
		if _, err := d.db.ExecContext(t.Context(), update, by.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
}
