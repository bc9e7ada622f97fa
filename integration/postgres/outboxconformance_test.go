package postgres_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/storetest"
)

func TestOutboxStoreConforms(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	storetest.RunOutbox(t, func(t *testing.T) storetest.OutboxDatabase[pgx.Tx] {
		t.Helper()
		return pgxOutbox{schema: newSchema(t, url, admin), pool: newPool(t, url)}
	})
}

func TestSQLOutboxStoreConforms(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	storetest.RunOutbox(t, func(t *testing.T) storetest.OutboxDatabase[*sql.Tx] {
		t.Helper()
		return sqlOutbox{schema: newSchema(t, url, admin), db: newSQLPool(t, url)}
	})
}

// Age of what the outbox records.
func (s schema) ageOutbox(t *testing.T, by time.Duration) {
	t.Helper()
	for table, times := range map[string][]string{
		"outbox": {"created_at", "deliver_after"}, "aside": {"due_at", "set_aside_at"},
		"relay": {"created_at", "seen_at"}, "relay_instance": {"seen_at", "lease_until"},
	} {
		for i, column := range times {
			times[i] = column + ` = ` + column + ` - $1 * interval '1 microsecond'`
		}
		execute(t, s.admin, `UPDATE `+pgx.Identifier{s.name, table}.Sanitize()+` SET `+strings.Join(times, ", "), by.Microseconds())
	}
}

// insertPlain is what the documentation of schema.sql shows.
func (s schema) insertPlain() string {
	return `INSERT INTO ` + pgx.Identifier{s.name, "outbox"}.Sanitize() + ` (topic, key, payload) VALUES ($1, $2, $3)`
}

func (s schema) insertInvalid() string {
	return `INSERT INTO ` + pgx.Identifier{s.name, "outbox"}.Sanitize() + ` (topic, headers) VALUES ($1, '{"name": "value"}')`
}

func (s schema) insertLarge() string {
	return `INSERT INTO ` + pgx.Identifier{s.name, "outbox"}.Sanitize() + ` (topic, key, payload) VALUES ($1, $2, convert_to(repeat('p', $3), 'UTF8'))`
}

const lockName = `SELECT pg_advisory_xact_lock(hashtext($1))`

type pgxOutbox struct {
	schema

	pool *pgxpool.Pool
}

func (d pgxOutbox) Open(t *testing.T) outbox.Store[pgx.Tx] {
	t.Helper()
	return postgres.New(newPool(t, d.url), postgres.WithSchema(d.name))
}

func (d pgxOutbox) Begin(ctx context.Context) (pgx.Tx, error)   { return d.pool.Begin(ctx) }
func (pgxOutbox) Commit(ctx context.Context, tx pgx.Tx) error   { return tx.Commit(ctx) }
func (pgxOutbox) Rollback(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }
func (pgxOutbox) ErrEnded() error                               { return pgx.ErrTxClosed }
func (pgxOutbox) OneWriter() bool                               { return false }
func (d pgxOutbox) Age(t *testing.T, by time.Duration)          { t.Helper(); d.ageOutbox(t, by) }
func (pgxOutbox) Lock(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, lockName, name)
	return err
}

func (pgxOutbox) RollBackToSavepoint(ctx context.Context, tx pgx.Tx, work func() error) error {
	if _, err := tx.Exec(ctx, `SAVEPOINT s`); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `ROLLBACK TO SAVEPOINT s`)
	return err
}

func (d pgxOutbox) InsertPlain(ctx context.Context, tx pgx.Tx, topic string, key, payload []byte) error {
	_, err := tx.Exec(ctx, d.insertPlain(), topic, key, payload)
	return err
}

func (d pgxOutbox) InsertInvalid(ctx context.Context, tx pgx.Tx, topic string) error {
	_, err := tx.Exec(ctx, d.insertInvalid(), topic)
	return err
}

func (d pgxOutbox) InsertLarge(ctx context.Context, tx pgx.Tx, topic string, key []byte, payloadBytes int) error {
	_, err := tx.Exec(ctx, d.insertLarge(), topic, key, payloadBytes)
	return err
}

type sqlOutbox struct {
	schema

	db *sql.DB
}

func (d sqlOutbox) Open(t *testing.T) outbox.Store[*sql.Tx] {
	t.Helper()
	return postgres.NewSQL(newSQLPool(t, d.url), postgres.WithSchema(d.name))
}

func (d sqlOutbox) Begin(ctx context.Context) (*sql.Tx, error) { return d.db.BeginTx(ctx, nil) }
func (sqlOutbox) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (sqlOutbox) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }
func (sqlOutbox) ErrEnded() error                              { return sql.ErrTxDone }
func (sqlOutbox) OneWriter() bool                              { return false }
func (d sqlOutbox) Age(t *testing.T, by time.Duration)         { t.Helper(); d.ageOutbox(t, by) }

func (sqlOutbox) Lock(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, lockName, name)
	return err
}

func (sqlOutbox) RollBackToSavepoint(ctx context.Context, tx *sql.Tx, work func() error) error {
	if _, err := tx.ExecContext(ctx, `SAVEPOINT s`); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT s`)
	return err
}

func (d sqlOutbox) InsertPlain(ctx context.Context, tx *sql.Tx, topic string, key, payload []byte) error {
	_, err := tx.ExecContext(ctx, d.insertPlain(), topic, key, payload)
	return err
}

func (d sqlOutbox) InsertInvalid(ctx context.Context, tx *sql.Tx, topic string) error {
	_, err := tx.ExecContext(ctx, d.insertInvalid(), topic)
	return err
}

func (d sqlOutbox) InsertLarge(ctx context.Context, tx *sql.Tx, topic string, key []byte, payloadBytes int) error {
	_, err := tx.ExecContext(ctx, d.insertLarge(), topic, key, payloadBytes)
	return err
}
