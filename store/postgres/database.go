package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// Store keeps records and dead letters in PostgreSQL through pgx. Its work runs on a pgx.Tx.
type Store = Database[pgx.Tx]

// SQLStore does the same through database/sql. Its work runs on a *sql.Tx.
type SQLStore = Database[*sql.Tx]

var (
	_ inbox.Store[pgx.Tx]  = (*Store)(nil)
	_ inbox.Store[*sql.Tx] = (*SQLStore)(nil)
)

// Database is a store on one PostgreSQL schema, over its transaction type. Use
// it by the names Store and SQLStore. It is safe for concurrent use.
type Database[Tx any] struct {
	settings

	transport transport[Tx]

	// invalid is what New was given that cannot work. Every call returns it.
	invalid error

	outboxLog

	// The statements of the hot path, with the schema's name in place.
	claimOneSQL, claimManySQL, claimOneBoundedSQL, claimManyBoundedSQL, fingerprintsSQL, lockKeySharesSQL string

	// claimsHurry: the transport hurries the first statement.
	claimsHurry bool
}

// New returns a store on the pool. It uses one connection of the pool for each
// Atomic that runs at the same time, and never more than one for each call.
// Nothing is sent to the server before the first call.
func New(pool *pgxpool.Pool, options ...Option) *Store {
	d := newDatabase[pgx.Tx](options)
	if pool == nil {
		return d.without("New: the pool is nil: pass one, such as that of pgxpool.New")
	}
	d.transport = newPgxTransport(pool, d.settings)
	d.claimsHurry = true
	return d
}

// NewSQL returns a store on a database/sql pool whose driver speaks to
// PostgreSQL: pgx's stdlib, or any other that reports SQLSTATEs by a method
// SQLState() string, as lib/pq does. Otherwise it is like New.
func NewSQL(db *sql.DB, options ...Option) *SQLStore {
	d := newDatabase[*sql.Tx](options)
	if db == nil {
		return d.without("NewSQL: the database is nil: pass one, such as that of sql.Open")
	}
	d.transport = sqlTransport{db, d.commitDeadline}
	return d
}

func newDatabase[Tx any](options []Option) *Database[Tx] {
	s, err := newSettings(options)
	d := &Database[Tx]{settings: s, invalid: err}
	d.claimOneSQL, d.claimOneBoundedSQL = d.claimSQL(claimOneSQL)
	d.claimManySQL, d.claimManyBoundedSQL = d.claimSQL(claimManySQL)
	d.fingerprintsSQL = d.sql(fingerprintsSQL)
	d.lockKeySharesSQL = d.sql(lockKeysSQL, "KEY SHARE")
	return d
}

func (d *Database[Tx]) without(problem string) *Database[Tx] {
	d.invalid = errors.Join(d.invalid, fmt.Errorf("%w: postgres: %s", idempotency.ErrUnavailable, problem))
	return d
}

// sql puts the schema's name in place of {schema}, and strength, if given, in
// place of {strength}.
func (d *Database[Tx]) sql(statement string, strength ...string) string {
	for _, s := range strength {
		statement = strings.ReplaceAll(statement, "{strength}", s)
	}
	return strings.ReplaceAll(statement, "{schema}", d.quoted())
}

// transport is what pgx and database/sql do differently.
type transport[Tx any] interface {
	// begin starts a READ COMMITTED transaction and runs first in it, in the
	// same round trip where the driver can. first.statement may be empty.
	// Errors are the driver's.
	begin(ctx context.Context, first opening) (transaction[Tx], error)

	// on runs statements in a transaction that was lent.
	on(tx Tx) runner

	// alone runs one statement as a transaction of its own, in one round trip where
	// the driver can. Errors are the driver's.
	alone(ctx context.Context, q query) error
}

// transaction is one that was begun and not yet ended.
type transaction[Tx any] interface {
	// lend returns what the work gets.
	lend() Tx

	// failure says what an error returned by the work means, now that it has
	// returned: the error itself, or one that wraps it and a sentinel.
	failure(err error) error

	// commit takes the transaction back and commits it. Its errors are
	// sentinels, or say what the work did wrong.
	commit() error

	// end rolls back unless commit was called, and gives back the connection.
	end()
}

// runner runs statements. Arguments are strings, integers, booleans, []byte and
// nil: the types that every driver and every exec mode of pgx agrees on.
type runner interface {
	exec(ctx context.Context, statement string, args ...any) (rows int64, err error)
	query(ctx context.Context, q query) error
}

// query is a statement and what is done with each row of its result.
type query struct {
	statement string
	args      []any
	row       func(row scanner) error
}

// opening is the first statement of a transaction.
type opening struct {
	query

	// bounded, if not nil, is a statement that does the same and does not wait for
	// locks. It is run in another transaction when query has not ended within the
	// claim wait, or when a statement_timeout shorter than that has ended it: only the
	// server can tell whether somebody holds a lock.
	bounded func() query
}

type scanner interface{ Scan(dest ...any) error }

// inTransaction runs one of the store's own operations, with its waits for locks
// bounded. Its errors are sentinels.
func (d *Database[Tx]) inTransaction(ctx context.Context, doing string, work func(ctx context.Context, r runner) error) error {
	return d.transact(ctx, doing, opening{query: setWait(lockTimeout(d.claimWait), new(string))}, func(ctx context.Context, tx Tx) error {
		if err := work(ctx, d.transport.on(tx)); err != nil {
			return storeError(ctx, doing, err)
		}
		return nil
	})
}

// transact runs work in a transaction that begins with first, and commits it if
// work returns nil.
func (d *Database[Tx]) transact(ctx context.Context, doing string, first opening, work func(ctx context.Context, tx Tx) error) error {
	if d.invalid != nil {
		return d.invalid
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	tx, err := d.transport.begin(ctx, first)
	if err != nil {
		return storeError(ctx, doing, err)
	}
	defer tx.end()
	if err := work(ctx, tx.lend()); err != nil {
		return tx.failure(err)
	}
	return tx.commit()
}

// bytesArg keeps nil and empty apart: drivers differ in what a nil slice means.
func bytesArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
