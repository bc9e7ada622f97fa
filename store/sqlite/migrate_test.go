package sqlite_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// fileOfVersion1 is a file as the first release left it, with one record and one
// dead letter.
func fileOfVersion1(t *testing.T) string {
	t.Helper()
	schema, err := os.ReadFile("migrations/001_inbox.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "store.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		`PRAGMA journal_mode = WAL`,
		string(schema),
		`INSERT INTO onceward_record VALUES ('test', 'a', NULL, 1, 1 << 60)`,
		`INSERT INTO onceward_dead_letter (consumer, reason, error, attempts, message_id, source, topic, headers, position, parks_key, created_at)
		 VALUES ('billing', 'attempts', 'timeout', 3, 'm-1', 'shop', 'orders', '[]', 'orders/0/1', 0, 1)`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestFileOfVersion1IsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	path := fileOfVersion1(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			store, err := sqlite.Open(t.Context(), path, sqlite.WithClaimWait(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()

	store, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Check(t.Context()); err != nil {
		t.Error(err)
	}
	var version int
	if err := store.DB().QueryRowContext(t.Context(), `SELECT version FROM onceward_schema`).Scan(&version); err != nil || version != 2 {
		t.Errorf("version %d, %v", version, err)
	}
	letters, err := store.DeadLetters(t.Context(), "billing", inbox.Filter{Limit: 10})
	if err != nil || len(letters) != 1 || letters[0].Message.ID != "m-1" {
		t.Errorf("letters are %+v, %v", letters, err)
	}
	registration := outbox.Registration{Relay: "events", Lanes: 1, Policy: outbox.BlockLane, Retention: time.Hour}
	if err := store.Register(t.Context(), registration); err != nil {
		t.Error(err)
	}
	tx, err := store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Append(t.Context(), tx, []outbox.Message{{ID: "e-1", Topic: "orders"}}); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	chunk, err := store.Read(t.Context(), outbox.ReadRequest{Relay: "events", Lanes: []int{0}, AllLanes: 1, Limit: 10, MaxBytes: 1 << 20})
	if err != nil || len(chunk.Events) != 1 || chunk.Events[0].ID != "e-1" {
		t.Errorf("read %+v, %v", chunk, err)
	}
}

func TestRecordsOfVersion1AreKept(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(t.Context(), fileOfVersion1(t))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var verdict idempotency.Verdict
	err = store.Atomic(t.Context(), claim("a"), noteVerdict(&verdict))
	if err != nil || verdict != idempotency.Duplicate {
		t.Errorf("the claim is %v, %v", verdict, err)
	}
}

func TestStoreWhoseTablesAreOlderSaysSo(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	if _, err := store.DB().ExecContext(t.Context(), `UPDATE onceward_schema SET version = 1`); err != nil {
		t.Fatal(err)
	}
	wantIs(t, store.Check(t.Context()), idempotency.ErrNotMigrated)
}
