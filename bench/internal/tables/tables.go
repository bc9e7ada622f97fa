// Package tables holds the tables that the sides of a benchmark write to, the
// hand-written claim, and the handler's insert, which all share.
package tables

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/store/postgres"
)

// Tables are the library's, in a schema of their own, in which a hand-written side
// claims as well, and one of effects. Sides that share none all find the same bulk in
// theirs, however many take part.
type Tables struct {
	Schema  string
	Records Records
	Effects Effects

	records pgx.Identifier
}

// Of names the tables of a side.
func Of(side string) Tables {
	records := pgx.Identifier{side, "record"}
	return Tables{Schema: side, Records: recordsIn(records.Sanitize()), Effects: effectsOf(side), records: records}
}

// Create makes an empty database ready for the sides.
func Create(ctx context.Context, pool *pgxpool.Pool, sides ...Tables) error {
	for _, s := range sides {
		if err := postgres.New(pool, postgres.WithSchema(s.Schema)).Migrate(ctx); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		if err := execute(ctx, pool, []string{s.Effects.create()}); err != nil {
			return err
		}
	}
	return nil
}

// Older are records that stand in each table when a contest begins: in the scope
// that is measured, or the claims would touch none of their pages.
type Older struct {
	Count int
	Scope func(side Tables) string
	Key   func(n int) string
}

// Reset empties the tables, puts the older records into them and checkpoints, so
// that every contest starts alike.
func Reset(ctx context.Context, pool *pgxpool.Pool, older Older, sides ...Tables) error {
	expires := time.Now().Add(24 * time.Hour)
	for _, s := range sides {
		if err := execute(ctx, pool, []string{`TRUNCATE ` + s.records.Sanitize(), `TRUNCATE ` + s.Effects.table}); err != nil {
			return err
		}
		if older.Count == 0 {
			continue
		}
		scope := older.Scope(s)
		_, err := pool.CopyFrom(ctx, s.records, []string{"scope", "key", "expires_at"}, pgx.CopyFromSlice(older.Count, func(n int) ([]any, error) {
			return []any{scope, older.Key(n), expires}, nil
		}))
		if err != nil {
			return fmt.Errorf("put %d older records into %s: %w", older.Count, s.records.Sanitize(), err)
		}
	}
	return execute(ctx, pool, []string{`VACUUM ANALYZE`, `CHECKPOINT`})
}

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

// Effects is one side's table of business rows. All have the same shape.
type Effects struct {
	table string
	// Insert writes one row. Parameters: order id, amount.
	Insert string
	// InsertAll writes many. Parameters: order ids, amounts.
	InsertAll string
}

func effectsOf(side string) Effects {
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

// Orders returns the order of each row.
func (e Effects) Orders(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	rows, _ := pool.Query(ctx, `SELECT order_id FROM `+e.table) // CollectRows tells of its error.
	orders, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the orders of %s: %w", e.table, err)
	}
	return orders, nil
}
