package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/storetest"
)

func TestOutboxConformance(t *testing.T) {
	storetest.RunOutbox(t, func(t *testing.T) storetest.OutboxDatabase[*sql.Tx] {
		t.Helper()
		return outboxDatabase{newDatabase(t)}
	})
}

type outboxDatabase struct{ *database }

func (d outboxDatabase) Open(t *testing.T) outbox.Store[*sql.Tx] {
	t.Helper()
	return d.open(t, time.Minute)
}

func (d outboxDatabase) Begin(ctx context.Context) (*sql.Tx, error) { return d.db.BeginTx(ctx, nil) }
func (d outboxDatabase) ErrEnded() error                            { return sql.ErrTxDone }
func (d outboxDatabase) OneWriter() bool                            { return true }

// Lock has nothing to do: a transaction is alone from its beginning.
func (d outboxDatabase) Lock(context.Context, *sql.Tx, string) error { return nil }

func (d outboxDatabase) RollBackToSavepoint(ctx context.Context, tx *sql.Tx, work func() error) error {
	_, err := tx.ExecContext(ctx, `SAVEPOINT test`)
	if err == nil {
		err = work()
	}
	_, back := tx.ExecContext(ctx, `ROLLBACK TO test; RELEASE test`)
	return errors.Join(err, back)
}

func (d outboxDatabase) InsertPlain(ctx context.Context, tx *sql.Tx, topic string, key, payload []byte) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO onceward_event (topic, key, payload) VALUES (?, ?, ?)`, topic, key, payload)
	return err
}

func (d outboxDatabase) InsertInvalid(ctx context.Context, tx *sql.Tx, topic string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO onceward_event (topic, headers) VALUES (?, '{"a": 1}')`, topic)
	return err
}

func (d outboxDatabase) InsertLarge(ctx context.Context, tx *sql.Tx, topic string, key []byte, payloadBytes int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO onceward_event (topic, key, payload) VALUES (?, ?, zeroblob(?))`, topic, key, payloadBytes)
	return err
}

func (d outboxDatabase) Age(t *testing.T, by time.Duration) {
	t.Helper()
	for _, update := range []string{
		`UPDATE onceward_event SET created_at = created_at - ?1, deliver_after = deliver_after - ?1`,
		`UPDATE onceward_relay SET created_at = created_at - ?1, seen_at = seen_at - ?1`,
		`UPDATE onceward_relay_instance SET lease_until = lease_until - ?1`,
		`UPDATE onceward_aside SET due_at = due_at - ?1, set_aside_at = set_aside_at - ?1`,
	} {
		if _, err := d.db.ExecContext(t.Context(), update, by.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
}
