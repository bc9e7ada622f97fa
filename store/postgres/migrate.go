package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/onceward/onceward/idempotency"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is a file migrations/NNN_name.sql: NNN is its version, counted from one.
type migration struct {
	version   int
	name, sql string
}

// migrations are all of them, in order. The files are part of the program, so
// that a wrong one is a mistake of ours that the first test shows.
//
//nolint:gochecknoglobals // A constant in all but name.
var migrations = readMigrations(migrationFiles)

func readMigrations(files fs.FS) []migration {
	paths, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		panic(err)
	}
	all := make([]migration, 0, len(paths))
	for i, path := range paths {
		number, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(path, "migrations/"), ".sql"), "_")
		text, err := fs.ReadFile(files, path)
		if err != nil {
			panic(err)
		}
		if version, err := strconv.Atoi(number); err != nil || version != i+1 {
			panic("postgres: " + path + " is not migration " + strconv.Itoa(i+1))
		}
		all = append(all, migration{i + 1, name, string(text)})
	}
	return all
}

// migrateLockSQL lets one process migrate at a time: CREATE … IF NOT EXISTS fails
// when two do it at once.
const migrateLockSQL = `SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)`

// schemaExistsSQL is asked first because CREATE SCHEMA IF NOT EXISTS takes the
// right to create one even where it exists.
const schemaExistsSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)`

const createMigrationSQL = `
CREATE TABLE {schema}.migration (
	version    integer     NOT NULL,
	name       text        NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	CONSTRAINT migration_pkey PRIMARY KEY (version)
);
COMMENT ON TABLE {schema}.migration IS 'Migrations that were applied'`

const migrationExistsSQL = `
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname = $1::text AND c.relname = 'migration')`

// migrationVersionSQL reads the whole of a table with a row for each migration.
const migrationVersionSQL = `SELECT coalesce(pg_catalog.max(version), 0) FROM {schema}.migration`

const addMigrationSQL = `INSERT INTO {schema}.migration (version, name) VALUES ($1::bigint, $2::text)`

// Migrate brings the schema to the version this program needs: it creates the
// schema if it is missing and applies each missing migration in a transaction of
// its own. It does nothing if nothing is missing. Any number of processes may
// call it at the same time; one works, the others wait for it until ctx ends.
//
// For a lock on what it changes it waits as long as for a claim, and then returns
// idempotency.ErrInProgress: consumers would queue up behind its wait.
//
// An outbox that was restored from another cluster is adopted: see Register.
func (d *Database[Tx]) Migrate(ctx context.Context) error {
	doing := fmt.Sprintf("migrate schema %q", d.schema)
	for done := false; !done; {
		// Without a bound, whatever is the connection's own.
		err := d.transact(ctx, doing, opening{query: setWait("0", new(string))}, func(ctx context.Context, tx Tx) (err error) {
			if done, err = d.migrateOnce(ctx, d.transport.on(tx)); err != nil {
				return storeError(ctx, doing, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return d.adopt(ctx)
}

// migrateOnce applies the first missing migration. done: there was none.
func (d *Database[Tx]) migrateOnce(ctx context.Context, r runner) (done bool, err error) {
	defer func() {
		if stateOf(err) == stateInsufficientRights {
			err = fmt.Errorf("%w: the role must own schema %q, or have CREATE on the database if the schema is missing: %w",
				idempotency.ErrUnavailable, d.schema, err)
		}
	}()
	if err := refuseEncoding(ctx, r); err != nil {
		return false, err
	}
	if _, err := r.exec(ctx, migrateLockSQL, d.advisoryLock("migrate")); err != nil {
		return false, err
	}
	version := 0
	err = d.bounded(ctx, r, func() (err error) {
		if version, err = d.prepareMigration(ctx, r); err != nil || version >= len(migrations) {
			return err
		}
		next := migrations[version]
		if _, err := r.exec(ctx, d.migrationSQL(next.sql)); err != nil {
			return fmt.Errorf("migration %03d_%s: %w", next.version, next.name, err)
		}
		_, err = r.exec(ctx, d.sql(addMigrationSQL), int64(next.version), next.name)
		return err
	})
	return version >= len(migrations), err
}

// migrationSQL is sql for files, in which a name also stands in a literal.
func (d *Database[Tx]) migrationSQL(text string) string {
	return strings.NewReplacer("'{schema}.", "'"+strings.ReplaceAll(d.quoted(), "'", "''")+".", "{schema}", d.quoted()).Replace(text)
}

// prepareMigration creates what the first migration needs, and returns how many
// were applied.
func (d *Database[Tx]) prepareMigration(ctx context.Context, r runner) (version int, err error) {
	for _, part := range []struct{ exists, create string }{
		{schemaExistsSQL, `CREATE SCHEMA {schema}`},
		{migrationExistsSQL, createMigrationSQL},
	} {
		var exists bool
		err := r.query(ctx, query{part.exists, []any{d.schema}, func(row scanner) error { return row.Scan(&exists) }})
		if err != nil {
			return 0, err
		}
		if !exists {
			if _, err := r.exec(ctx, d.sql(part.create)); err != nil {
				return 0, err
			}
		}
	}
	return d.version(ctx, r)
}

func (d *Database[Tx]) version(ctx context.Context, r runner) (version int, err error) {
	err = r.query(ctx, query{d.sql(migrationVersionSQL), nil, func(row scanner) error { return row.Scan(&version) }})
	return version, err
}

const encodingSQL = `SELECT pg_catalog.current_setting('server_encoding')`

func refuseEncoding(ctx context.Context, r runner) error {
	var encoding string
	err := r.query(ctx, query{encodingSQL, nil, func(row scanner) error { return row.Scan(&encoding) }})
	if err == nil && encoding != "UTF8" {
		err = fmt.Errorf("the database is encoded in %s and cannot hold every message ID: create it with ENCODING 'UTF8'", encoding)
	}
	return err
}

const readOnlySQL = `SELECT pg_catalog.current_setting('transaction_read_only')`

// Check implements inbox.Store and outbox.Store. It runs what Atomic runs, so a
// server that takes no writes, a missing right and a pooler that loses prepared
// statements show here.
func (d *Database[Tx]) Check(ctx context.Context) error {
	return d.inTransaction(ctx, "check", func(ctx context.Context, r runner) error {
		if err := refuseEncoding(ctx, r); err != nil {
			return err
		}
		var readOnly string
		err := r.query(ctx, query{readOnlySQL, nil, func(row scanner) error { return row.Scan(&readOnly) }})
		if err != nil {
			return err
		}
		if readOnly == "on" {
			return fmt.Errorf("%w: the server takes no writes: connect to the primary (target_session_attrs=read-write)", idempotency.ErrUnavailable)
		}
		version, err := d.version(ctx, r)
		if err == nil && version < len(migrations) {
			err = fmt.Errorf("%w: schema %q has version %d, this program needs %d: run Migrate", idempotency.ErrNotMigrated, d.schema, version, len(migrations))
		}
		if err != nil {
			return err
		}
		return d.refuseMissingRights(ctx, r, allParts...)
	})
}
