package sqlite

import (
	"context"
	"database/sql"
)

// pruneRecords finds the longest expired records in onceward_record_expires_at
// and deletes them by the primary key.
const pruneRecords = `
DELETE FROM onceward_record WHERE (scope, key) IN (
    SELECT scope, key FROM onceward_record WHERE expires_at <= ` + now + ` ORDER BY expires_at LIMIT ?1)`

// pruneAttempts does the same by onceward_attempt_expires_at.
const pruneAttempts = `
DELETE FROM onceward_attempt WHERE (scope, key) IN (
    SELECT scope, key FROM onceward_attempt WHERE expires_at <= ` + now + ` ORDER BY expires_at LIMIT ?1)`

// Prune implements inbox.Store. Of two calls in this process the second returns
// 0 at once. Another process's Prune is a writer like any other: this one waits
// for it to end and deletes what it left.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	if !s.pruning.TryLock() {
		return 0, nil
	}
	defer s.pruning.Unlock()

	pruned := 0
	err := s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, statement := range []string{pruneRecords, pruneAttempts} {
			result, err := tx.ExecContext(ctx, statement, max(0, limit-pruned)) // A negative LIMIT has no limit.
			if err != nil {
				return failed("prune", err)
			}
			n, err := result.RowsAffected()
			if err != nil {
				return failed("prune", err)
			}
			pruned += int(n)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return pruned, nil
}
