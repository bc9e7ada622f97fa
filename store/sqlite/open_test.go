package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/store/sqlite"
)

func nothing(context.Context, *sql.Tx, []idempotency.Verdict) error { return nil }

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want one that is %q", err, want)
	}
}

func TestPathsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for path, says := range map[string]string{
		"": "t.TempDir()", ":memory:": "t.TempDir()", "file:x.db?mode=memory": "plain path", "a\x00b": "NUL",
	} {
		if _, err := sqlite.Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("path %q: %v", path, err)
		}
	}
	if _, err := sqlite.Open(t.Context(), "x.db", sqlite.WithClaimWait(0)); err == nil || !strings.Contains(err.Error(), "claim wait") {
		t.Errorf("claim wait 0: %v", err)
	}
}

func TestStrangePathIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	name := "a b?c=d#e%20f&é.db"
	store, err := sqlite.Open(t.Context(), filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
		t.Error(err)
	}
}

func TestMissingFolderIsUnavailable(t *testing.T) {
	t.Parallel()
	_, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "no", "such", "folder.db"))
	wantIs(t, err, idempotency.ErrUnavailable)
}

func TestFileThatIsNoDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := sqlite.Open(t.Context(), path)
	wantIs(t, err, idempotency.ErrUnavailable)
}

func TestManyMayOpenANewFileAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.db")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			store, err := sqlite.Open(t.Context(), path, sqlite.WithClaimWait(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			if err := store.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestSettingsHoldOnEveryConnection(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.WithClaimWait(1234*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	check := func(where string, query func(context.Context, string, ...any) *sql.Row) {
		for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "1234"} {
			var got string
			if err := query(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s is %s, %v, want %s", where, pragma, got, err, want)
			}
		}
	}
	for range 3 { // Kept until the end, so that each is another connection.
		conn, err := store.DB().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		check("DB", conn.QueryRowContext)
	}
	err = store.Atomic(t.Context(), nil, func(_ context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
		check("handler", tx.QueryRowContext)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckTellsWhatIsWrongWithTheTables(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"missing": `DROP TABLE onceward_schema`,
		"newer":   `UPDATE onceward_schema SET version = 99`,
		"emptied": `DELETE FROM onceward_schema`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newDatabase(t).open(t, time.Minute)
			if _, err := store.DB().ExecContext(t.Context(), damage); err != nil {
				t.Fatal(err)
			}
			wantIs(t, store.Check(t.Context()), idempotency.ErrNotMigrated)
		})
	}
	t.Run("claim without tables", func(t *testing.T) {
		t.Parallel()
		store := newDatabase(t).open(t, time.Minute)
		if _, err := store.DB().ExecContext(t.Context(), `DROP TABLE onceward_record`); err != nil {
			t.Fatal(err)
		}
		wantIs(t, store.Atomic(t.Context(), claim("a"), nothing), idempotency.ErrNotMigrated)
	})
}

func TestNewerTablesAreNotTouched(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	if _, err := d.db.ExecContext(t.Context(), `UPDATE onceward_schema SET version = 99`); err != nil {
		t.Fatal(err)
	}
	_, err := sqlite.Open(t.Context(), d.path)
	wantIs(t, err, idempotency.ErrNotMigrated)
}

func TestClosedStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	wantIs(t, store.Check(t.Context()), idempotency.ErrUnavailable)
	wantIs(t, store.Atomic(t.Context(), claim("a"), nothing), idempotency.ErrUnavailable)
	_, err = store.Prune(t.Context(), 1)
	wantIs(t, err, idempotency.ErrUnavailable)
}
