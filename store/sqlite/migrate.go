package sqlite

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"

	"github.com/onceward/onceward/idempotency"
)

//go:embed migrations/001_inbox.sql
var createInbox string

//go:embed migrations/002_outbox.sql
var createOutbox string

// migrations are the steps from an empty database to schemaVersion. The step at
// index n brings tables of version n to n+1, and sets it in onceward_schema. A
// step that was released is never changed.
var migrations = [...]string{createInbox, createOutbox}

const schemaVersion = len(migrations)

const findSchemaTable = `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'onceward_schema')`

const readVersion = `SELECT version FROM onceward_schema`

// migrate brings the tables to schemaVersion in one transaction. Of several
// processes that open a file at once, the first does it. A file that is up to
// date is only read, so that opening it waits for no writer.
func (s *Store) migrate(ctx context.Context) error {
	version, err := versionOf(ctx, s.db.QueryRowContext)
	if err != nil {
		return failed("migrate", err)
	}
	if version >= schemaVersion {
		return checkVersion(version)
	}
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		version, err := versionOf(ctx, tx.QueryRowContext)
		for err == nil && 0 <= version && version < schemaVersion {
			_, err = tx.ExecContext(ctx, migrations[version])
			version++
		}
		if err != nil {
			return failed("migrate", err)
		}
		return checkVersion(version)
	})
}

// versionOf is the version of the tables, 0 if there are none.
func versionOf(ctx context.Context, queryRow func(ctx context.Context, query string, args ...any) *sql.Row) (version int, err error) {
	var exists bool
	if err := queryRow(ctx, findSchemaTable).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = queryRow(ctx, readVersion).Scan(&version)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: onceward_schema has no row: restore the file, or drop the onceward_ tables and open it again", idempotency.ErrNotMigrated)
	}
	return version, err
}

func checkVersion(version int) error {
	switch {
	case version == schemaVersion:
		return nil
	case version == 0:
		return fmt.Errorf("sqlite: %w: its tables are gone: open the file again to create them", idempotency.ErrNotMigrated)
	case version < schemaVersion:
		return fmt.Errorf("sqlite: %w: its tables have version %d and this program works with %d: open the file again to bring them up to date",
			idempotency.ErrNotMigrated, version, schemaVersion)
	default:
		return fmt.Errorf("sqlite: %w: its tables have version %d and this program works with %d: use the version of Onceward that made them, or a newer one",
			idempotency.ErrNotMigrated, version, schemaVersion)
	}
}

// Check implements inbox.Store and outbox.Store.
func (s *Store) Check(ctx context.Context) error {
	version, err := versionOf(ctx, s.db.QueryRowContext)
	if err != nil {
		return failed("check", err)
	}
	return checkVersion(version)
}
