package postgres

import (
	"context"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// countAttemptSQL counts by the index attempt_pkey. A count that has expired
// and was not pruned yet starts again.
const countAttemptSQL = `
INSERT INTO {schema}.attempt AS a (scope, key, attempts, error, expires_at)
VALUES ($1::text, $2::text, 1, $3::text,
	pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) ($4::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond'))
ON CONFLICT (scope, key) DO UPDATE SET
	attempts   = CASE WHEN a.expires_at <= pg_catalog.clock_timestamp() THEN 1 ELSE a.attempts + 1 END,
	first_at   = CASE WHEN a.expires_at <= pg_catalog.clock_timestamp() THEN pg_catalog.clock_timestamp() ELSE a.first_at END,
	last_at    = pg_catalog.clock_timestamp(),
	error      = EXCLUDED.error,
	expires_at = EXCLUDED.expires_at
RETURNING attempts`

// CountAttempt implements inbox.Store.
func (d *Database[Tx]) CountAttempt(ctx context.Context, scope, key, cause string, retention time.Duration) (int, error) {
	claim := idempotency.Claim{Scope: scope, Key: key, Retention: retention}
	if err := claim.Validate(); err != nil {
		return 0, err
	}
	var attempts int
	err := d.inTransaction(ctx, "count an attempt", func(ctx context.Context, r runner) error {
		args := []any{idempotency.StoredForm(scope), idempotency.StoredForm(key), storable(cause), microseconds(retention)}
		return r.query(ctx, query{d.sql(countAttemptSQL), args, func(row scanner) error { return row.Scan(&attempts) }})
	})
	return attempts, err
}
