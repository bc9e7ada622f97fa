// Package tables holds the tables both sides of a benchmark write to, the
// hand-written claim, and the handler's insert, which both share.
package tables

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/store/postgres"
)

const (
	libraryRecords     = `onceward.record`
	handwrittenRecords = `handwritten_record`
)

// Records is a table of records that is claimed in by hand.
type Records struct {
	// Claim claims one record. Unlike the library it does not bound its wait for
	// another transaction, nor does it keep a fingerprint. Parameters: scope, key,
	// retention.
	Claim string
	// ClaimAll is the claim of a batch and returns the keys that were new. It
	// claims in key order, because batches that claim in opposite orders deadlock.
	// Parameters: scope, keys, retention.
	ClaimAll string
}

func recordsIn(table string) Records {
	return Records{
		Claim: `INSERT INTO ` + table + ` (scope, key, expires_at)
	VALUES ($1, $2, clock_timestamp() + $3::interval)
	ON CONFLICT DO NOTHING`,
		ClaimAll: `INSERT INTO ` + table + ` (scope, key, expires_at)
	SELECT $1, key, clock_timestamp() + $3::interval FROM unnest($2::text[]) AS key ORDER BY key
	ON CONFLICT DO NOTHING RETURNING key`,
	}
}

// Handwritten is the table of records that Create makes for the hand-written side.
var Handwritten = recordsIn(handwrittenRecords)

// Effects is one side's table of business rows. All have the same shape.
type Effects struct {
	table string
	// Insert writes one row. Parameters: order id, amount.
	Insert string
	// InsertAll writes many. Parameters: order ids, amounts.
	InsertAll string
}

// EffectsOf names the table of a side.
func EffectsOf(side string) Effects {
	table := pgx.Identifier{"effect_" + side}.Sanitize()
	return Effects{
		table:     table,
		Insert:    `INSERT INTO ` + table + ` (order_id, amount) VALUES ($1, $2)`,
		InsertAll: `INSERT INTO ` + table + ` (order_id, amount) SELECT o.id, o.amount FROM unnest($1::text[], $2::bigint[]) AS o (id, amount)`,
	}
}

func (e Effects) create() string {
	return `CREATE TABLE ` + e.table + ` (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL, amount bigint NOT NULL)`
}

// Create makes an empty database ready for sides that share the library's tables,
// or those that the hand-written side has in their place.
func Create(ctx context.Context, pool *pgxpool.Pool, effects ...Effects) error {
	if err := postgres.New(pool).Migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	statements := []string{`CREATE TABLE ` + handwrittenRecords + ` (LIKE ` + libraryRecords + ` INCLUDING ALL)`}
	for _, e := range effects {
		statements = append(statements, e.create())
	}
	return execute(ctx, pool, statements)
}

// Reset empties these tables and checkpoints, so that every contest starts alike.
func Reset(ctx context.Context, pool *pgxpool.Pool, effects ...Effects) error {
	statements := []string{`TRUNCATE ` + libraryRecords + `, ` + handwrittenRecords}
	for _, e := range effects {
		statements = append(statements, `TRUNCATE `+e.table)
	}
	return execute(ctx, pool, append(statements, settled...))
}

// settled is the state in which a contest begins.
var settled = []string{`VACUUM ANALYZE`, `CHECKPOINT`}

func execute(ctx context.Context, pool *pgxpool.Pool, statements []string) error {
	for _, statement := range statements {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("prepare the benchmark's tables: %w", err)
		}
	}
	return nil
}

// Count returns how many orders have an effect. An order with two is an error.
func (e Effects) Count(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	var effects, orders int
	if err := pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT order_id) FROM `+e.table).Scan(&effects, &orders); err != nil {
		return 0, fmt.Errorf("count the rows of %s: %w", e.table, err)
	}
	if effects != orders {
		return 0, fmt.Errorf("%s holds %d rows of %d orders: some orders were handled twice", e.table, effects, orders)
	}
	return orders, nil
}
