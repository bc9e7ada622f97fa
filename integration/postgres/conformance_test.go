package postgres_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"strings"
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
	url, admin := newDatabase(t)
	storetest.Run(t, func(t *testing.T) storetest.Database[pgx.Tx] {
		t.Helper()
		return pgxDatabase{newSchema(t, url, admin)}
	})
}

func TestSQLStoreConforms(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	storetest.Run(t, func(t *testing.T) storetest.Database[*sql.Tx] {
		t.Helper()
		return sqlDatabase{newSchema(t, url, admin)}
	})
}

// schema is the part of storetest.Database that needs no store. A schema for each
// test makes as good a database of its own as CREATE DATABASE, in a tenth of the time.
// Its name holds what statements of the store have in place of parts that are put in.
type schema struct {
	url    string
	admin  *pgxpool.Pool
	name   string
	effect string
}

func newSchema(t *testing.T, url string, admin *pgxpool.Pool) schema {
	t.Helper()
	sum := sha256.Sum256([]byte(t.Name()))
	s := schema{url: url, admin: admin, name: fmt.Sprintf("{rows}{wait}{claim}{filter}{limit} %x", sum[:8])}
	s.effect = pgx.Identifier{s.name, "effect"}.Sanitize()
	if err := postgres.New(admin, postgres.WithSchema(s.name)).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, `CREATE TABLE `+s.effect+` (name text NOT NULL)`)
	return s
}

func (s schema) CountEffects(t *testing.T, name string) int {
	t.Helper()
	return queryRow[int](t, s.admin, `SELECT count(*) FROM `+s.effect+` WHERE name = $1`, name)
}

func (s schema) Age(t *testing.T, by time.Duration) {
	t.Helper()
	for table, times := range map[string][]string{
		"record": {"expires_at", "created_at"}, "attempt": {"expires_at", "first_at", "last_at"}, "dead_letter": {"created_at"},
	} {
		for i, column := range times {
			times[i] = column + ` = ` + column + ` - $1 * interval '1 microsecond'`
		}
		execute(t, s.admin, `UPDATE `+pgx.Identifier{s.name, table}.Sanitize()+` SET `+strings.Join(times, ", "), by.Microseconds())
	}
}

type pgxDatabase struct{ schema }

func (d pgxDatabase) Open(t *testing.T, claimWait time.Duration) inbox.Store[pgx.Tx] {
	t.Helper()
	return postgres.New(newPool(t, d.url), postgres.WithSchema(d.name), postgres.WithClaimWait(claimWait))
}

func (d pgxDatabase) AddEffect(ctx context.Context, tx pgx.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+d.effect+` VALUES ($1)`, name)
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

type sqlDatabase struct{ schema }

func (d sqlDatabase) Open(t *testing.T, claimWait time.Duration) inbox.Store[*sql.Tx] {
	t.Helper()
	return postgres.NewSQL(newSQLPool(t, d.url), postgres.WithSchema(d.name), postgres.WithClaimWait(claimWait))
}

func (d sqlDatabase) AddEffect(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO `+d.effect+` VALUES ($1)`, name) //nolint:gosec // A name of this test's own, quoted.
	return err
}

func (sqlDatabase) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (sqlDatabase) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }
