package tables

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/store/postgres"
)

// Own are the tables of one side alone: the library's, in a schema of its own, in
// which a hand-written side claims as well, and one of effects. Sides that share no
// table all find the same bulk in theirs, however many take part.
type Own struct {
	Schema  string
	Records Records
	Effects Effects

	records pgx.Identifier
}

// OwnOf names the tables of a side.
func OwnOf(side string) Own {
	records := pgx.Identifier{side, "record"}
	return Own{Schema: side, Records: recordsIn(records.Sanitize()), Effects: EffectsOf(side), records: records}
}

// CreateOwn makes an empty database ready for sides that share nothing.
func CreateOwn(ctx context.Context, pool *pgxpool.Pool, sides ...Own) error {
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
	Scope func(side Own) string
	Key   func(n int) string
}

// ResetOwn empties the tables, puts the older records into them and checkpoints.
func ResetOwn(ctx context.Context, pool *pgxpool.Pool, older Older, sides ...Own) error {
	expires := time.Now().Add(24 * time.Hour)
	for _, s := range sides {
		if err := execute(ctx, pool, []string{`TRUNCATE ` + s.records.Sanitize(), `TRUNCATE ` + s.Effects.table}); err != nil {
			return err
		}
		scope := older.Scope(s)
		_, err := pool.CopyFrom(ctx, s.records, []string{"scope", "key", "expires_at"}, pgx.CopyFromSlice(older.Count, func(n int) ([]any, error) {
			return []any{scope, older.Key(n), expires}, nil
		}))
		if err != nil {
			return fmt.Errorf("put %d older records into %s: %w", older.Count, s.records.Sanitize(), err)
		}
	}
	return execute(ctx, pool, settled)
}
