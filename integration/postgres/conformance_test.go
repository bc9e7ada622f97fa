package postgres_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/storetest"
)

func TestStoreConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Database[pgx.Tx] {
		url, admin := newDatabase(t)
		return pgxDatabase{database{url, admin}}
	})
}

func TestSQLStoreConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Database[*sql.Tx] {
		url, admin := newDatabase(t)
		return sqlDatabase{database{url, admin}}
	})
}

// database is the part of storetest.Database that needs no store.
type database struct {
	url   string
	admin *pgxpool.Pool
}

func (d database) CountEffects(t *testing.T, name string) int { return effects(t, d.admin, name) }

func (d database) Age(t *testing.T, by time.Duration) {
	interval := by.Microseconds()
	execute(t, d.admin, `UPDATE onceward.record SET expires_at = expires_at - $1 * interval '1 microsecond',
		created_at = created_at - $1 * interval '1 microsecond'`, interval)
	execute(t, d.admin, `UPDATE onceward.attempt SET expires_at = expires_at - $1 * interval '1 microsecond',
		first_at = first_at - $1 * interval '1 microsecond', last_at = last_at - $1 * interval '1 microsecond'`, interval)
	execute(t, d.admin, `UPDATE onceward.dead_letter SET created_at = created_at - $1 * interval '1 microsecond'`, interval)
}

type pgxDatabase struct{ database }

func (d pgxDatabase) Open(t *testing.T, claimWait time.Duration) inbox.Store[pgx.Tx] {
	return postgres.New(newPool(t, d.url), postgres.WithClaimWait(claimWait))
}

func (pgxDatabase) AddEffect(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, name)
	return err
}

// Commit and Rollback go round the lent transaction, which refuses to do it.
func (pgxDatabase) Commit(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `COMMIT`)
	return err
}

func (pgxDatabase) Rollback(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `ROLLBACK`)
	return err
}

type sqlDatabase struct{ database }

func (d sqlDatabase) Open(t *testing.T, claimWait time.Duration) inbox.Store[*sql.Tx] {
	return postgres.NewSQL(newSQLPool(t, d.url), postgres.WithClaimWait(claimWait))
}

func (sqlDatabase) AddEffect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`, name)
	return err
}

func (sqlDatabase) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (sqlDatabase) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }
