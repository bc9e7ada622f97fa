package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// countAttempt adds one to a count or begins it, anew if it has expired and was
// not pruned yet. Conflicts are found in the primary key.
const countAttempt = `
INSERT INTO onceward_attempt (scope, key, attempts, cause, counted_at, expires_at)
VALUES (?1, ?2, 1, ?3, ` + now + `, ` + now + ` + ?4)
ON CONFLICT (scope, key) DO UPDATE
SET attempts = CASE WHEN expires_at <= ` + now + ` THEN 1 ELSE attempts + 1 END,
    cause = excluded.cause, counted_at = excluded.counted_at, expires_at = excluded.expires_at
RETURNING attempts`

// CountAttempt implements inbox.Store. The retention counts from the latest attempt.
func (s *Store) CountAttempt(ctx context.Context, scope, key, cause string, retention time.Duration) (int, error) {
	// A claim of the same would be refused for the same reasons.
	if err := (idempotency.Claim{Scope: scope, Key: key, Retention: retention}).Validate(); err != nil {
		return 0, err
	}
	var attempts int
	err := s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, countAttempt,
			idempotency.StoredForm(scope), idempotency.StoredForm(key), text(cause), microseconds(retention)).Scan(&attempts)
		if err != nil {
			return failed("count attempt", err)
		}
		return nil
	})
	return attempts, err
}
