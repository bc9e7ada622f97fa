package postgres

import (
	"context"
	"fmt"
	"hash/fnv"
)

// pruneLockSQL keeps other pruners away until the transaction ends. Session
// locks would outlive it behind a PgBouncer.
const pruneLockSQL = `SELECT pg_catalog.pg_try_advisory_xact_lock($1::bigint)`

// pruneRecordsSQL deletes the oldest expired records by the index
// record_expires_at. clock_timestamp() stands in a subquery because an index
// cannot be searched for a value that changes while it is searched. Records are
// never updated and have one pruner, so their place (ctid) is theirs.
const pruneRecordsSQL = `
DELETE FROM {schema}.record WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {schema}.record
	WHERE expires_at <= (SELECT pg_catalog.clock_timestamp())
	ORDER BY expires_at LIMIT $1::bigint))`

// pruneAttemptsSQL deletes the oldest expired counts by the index
// attempt_expires_at. One that is counted again meanwhile has moved, and stays.
const pruneAttemptsSQL = `
DELETE FROM {schema}.attempt WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {schema}.attempt
	WHERE expires_at <= (SELECT pg_catalog.clock_timestamp())
	ORDER BY expires_at LIMIT $1::bigint))`

// Prune implements inbox.Store.
func (d *Database[Tx]) Prune(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("postgres: Prune: the limit is %d: it must be positive", limit)
	}
	pruned := 0
	err := d.inTransaction(ctx, "prune", func(ctx context.Context, r runner) error {
		var alone bool
		err := r.query(ctx, query{pruneLockSQL, []any{d.advisoryLock("prune")}, func(row scanner) error { return row.Scan(&alone) }})
		if err != nil || !alone {
			return err
		}
		for _, statement := range []string{pruneRecordsSQL, pruneAttemptsSQL} {
			rows, err := r.exec(ctx, d.sql(statement), int64(limit-pruned))
			if err != nil {
				return err
			}
			if pruned += int(rows); pruned == limit {
				break
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return pruned, nil
}

// advisoryLock is the number of a lock in the database, for one purpose in one schema.
func (d *Database[Tx]) advisoryLock(purpose string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("onceward/" + purpose + "/" + d.schema))
	return int64(h.Sum64()) // Any 64 bits name a lock.
}
