package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// chaosPostgres is a database on a server of its own: where others commit, snapshots are fresh by luck.
type chaosPostgres struct {
	t           *testing.T
	admin, pool *pgxpool.Pool
	writers     *writers
}

func newChaosPostgres(t *testing.T) chaosDatabase {
	t.Helper()
	url := newCluster(t).Database()
	admin := newDatabase(t, url)
	return &chaosPostgres{t: t, admin: admin, pool: newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 16 }), writers: newWriters(t, url)}
}

func (d *chaosPostgres) store() outbox.RelayStore { return postgres.New(d.pool) }

func (d *chaosPostgres) load(random *rand.Rand) (end func()) {
	return loadUntil(d.t, d.writers, random)
}

func (d *chaosPostgres) ledger() []entry { return readLedger(d.t, d.admin) }

func (d *chaosPostgres) recent(but int) (number int64, id string) {
	const last = `SELECT number, message_id FROM onceward.outbox ORDER BY number DESC LIMIT 1 OFFSET $1`
	if err := d.admin.QueryRow(d.t.Context(), last, but).Scan(&number, &id); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		d.t.Errorf("look for a recent event: %v", err)
	}
	return number, id
}

func (d *chaosPostgres) expireLeases() {
	execute(d.t, d.admin, `UPDATE onceward.relay_instance SET lease_until = clock_timestamp() - interval '1 second'`)
}

func (d *chaosPostgres) change(topics []string, retention time.Duration) {
	execute(d.t, d.admin, `UPDATE onceward.relay SET topics = $1, retention = $2`, topics, retention)
}

// chaosSQLite is a file.
type chaosSQLite struct {
	t    *testing.T
	path string
	own  *sqlite.Store // of the writers and the checker
}

func newChaosSQLite(t *testing.T) chaosDatabase {
	t.Helper()
	d := &chaosSQLite{t: t, path: filepath.Join(t.TempDir(), "store.db")}
	d.own = d.open()
	d.exec(ledgerTables)
	for n := range keys {
		d.exec(`INSERT INTO tally VALUES (?, 0)`, key(n))
	}
	return d
}

func (d *chaosSQLite) store() outbox.RelayStore { return d.open() }

// open does not flush: only a crash of the machine could tell.
func (d *chaosSQLite) open() *sqlite.Store {
	d.t.Helper()
	store, err := sqlite.Open(d.t.Context(), d.path, sqlite.WithClaimWait(patience), sqlite.WithoutFsync())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = store.Close() })
	return store
}

func (d *chaosSQLite) exec(statement string, args ...any) {
	d.t.Helper()
	if _, err := d.own.DB().ExecContext(d.t.Context(), statement, args...); err != nil {
		d.t.Fatalf("%s: %v", statement, err)
	}
}

func (d *chaosSQLite) load(random *rand.Rand) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var load sync.WaitGroup
	for range 2 {
		random := newRandom(random.Uint64())
		events := outbox.New(d.own)
		load.Go(func() {
			for ctx.Err() == nil {
				if err := d.transaction(events, random); err != nil {
					d.t.Errorf("writer: %v", err)
					return
				}
				pause(ctx, time.Duration(random.Int64N(int64(20*time.Millisecond))))
			}
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		load.Wait()
	})
}

// transaction publishes events of some keys and enters them into the ledger, or changes its mind. It has the file's lock from the start,
// so that it needs none of the keys.
func (d *chaosSQLite) transaction(events *outbox.Outbox[*sql.Tx], random *rand.Rand) error {
	ctx := context.Background()
	tx, err := d.own.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	messages := make([]outbox.Message, 1+random.IntN(5))
	for i := range messages {
		key := key(random.IntN(keys))
		var number int64
		if err := tx.QueryRowContext(ctx, `UPDATE tally SET number = number + 1 WHERE key = ? RETURNING number`, key).Scan(&number); err != nil {
			return err
		}
		messages[i] = outbox.Message{ID: eventID(key, number), Topic: topicOf(key), Key: []byte(key)}
		if _, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES (?, ?, ?)`, messages[i].ID, key, number); err != nil {
			return err
		}
	}
	if err := events.Publish(ctx, tx, messages...); err != nil {
		return err
	}
	if random.IntN(5) == 0 {
		return tx.Rollback()
	}
	return tx.Commit()
}

func (d *chaosSQLite) ledger() (entries []entry) {
	d.t.Helper()
	rows, err := d.own.DB().QueryContext(d.t.Context(), `SELECT id, key, number FROM ledger`)
	if err != nil {
		d.t.Fatalf("read the ledger: %v", err)
	}
	defer rows.Close()
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.id, &e.key, &e.number); err != nil {
			d.t.Fatalf("read the ledger: %v", err)
		}
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatalf("read the ledger: %v", err)
	}
	return entries
}

func (d *chaosSQLite) recent(but int) (number int64, id string) {
	const last = `SELECT number, id FROM onceward_event ORDER BY number DESC LIMIT 1 OFFSET ?`
	if err := d.own.DB().QueryRowContext(d.t.Context(), last, but).Scan(&number, &id); err != nil && !errors.Is(err, sql.ErrNoRows) {
		d.t.Errorf("look for a recent event: %v", err)
	}
	return number, id
}

func (d *chaosSQLite) expireLeases() {
	d.exec(`UPDATE onceward_relay_instance SET lease_until = 0`)
}

func (d *chaosSQLite) change(topics []string, retention time.Duration) {
	list, err := json.Marshal(topics)
	if err != nil {
		d.t.Fatal(err)
	}
	d.exec(`UPDATE onceward_relay SET topics = ?, retention = ?`, string(list), retention.Microseconds())
}
