package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward/outbox"
)

// abandoned are the relays of which nobody has had a lease for longer than ?1.
const abandoned = `
SELECT r.name FROM onceward_relay AS r
WHERE coalesce(r.seen_at, r.created_at) < ` + now + ` - ?1
  AND NOT EXISTS (SELECT 1 FROM onceward_relay_instance AS i WHERE i.relay = r.name AND i.` + isLive + `)`

// passed is up to where all other relays have passed the log, and how long events
// stay after that. NULL: there are no relays.
const passed = `
SELECT CASE WHEN count(*) > 0 THEN coalesce(
    (SELECT min(l.last) FROM onceward_relay_lane AS l WHERE l.relay NOT IN (` + abandoned + `)), ` + lastNumber + `) END,
    coalesce(max(retention), 0)
FROM onceward_relay`

// prunable walks the log by the primary key, from its beginning up to the first
// event that is too young. Whether one is set aside is looked up in the primary
// key, for each relay.
const prunable = `
SELECT e.number FROM onceward_event AS e
WHERE e.number <= ?1
  AND e.number < coalesce(
    (SELECT y.number FROM onceward_event AS y WHERE y.number <= ?1 AND y.created_at > ` + now + ` - ?2 ORDER BY y.number LIMIT 1), ?1 + 1)
  AND NOT EXISTS (SELECT 1 FROM onceward_relay AS r CROSS JOIN onceward_aside AS a ON a.relay = r.name AND a.number = e.number)
ORDER BY e.number LIMIT ?3`

const deleteEvents = `DELETE FROM onceward_event WHERE number IN (` + prunable + `)`

// PruneLog implements outbox.RelayStore. It takes the write lock only if there is
// something to delete. Of two calls in this process the second does nothing;
// another process's is a writer like any other.
func (s *Store) PruneLog(ctx context.Context, limit int, abandonAfter time.Duration) (outbox.Pruned, error) {
	if !s.pruningLog.TryLock() {
		return outbox.Pruned{}, nil
	}
	defer s.pruningLog.Unlock()

	var pruned outbox.Pruned
	some := false
	err := s.read(ctx, func(tx *sql.Tx) error {
		bound, err := readPruneBound(ctx, tx, abandonAfter)
		if err != nil {
			return err
		}
		pruned.Abandoned = bound.abandoned
		numbers, err := column[int64](ctx, tx, prunable, bound.last, bound.retention, 1)
		if err != nil {
			return failed("prune log", err)
		}
		some = len(numbers) > 0 && limit > 0
		return nil
	})
	if err != nil || !some {
		return pruned, err
	}
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		bound, err := readPruneBound(ctx, tx, abandonAfter)
		if err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, deleteEvents, bound.last, bound.retention, limit)
		if err != nil {
			return failed("prune log", err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return failed("prune log", err)
		}
		pruned = outbox.Pruned{Events: int(n), Abandoned: bound.abandoned}
		return nil
	})
	if err != nil {
		return outbox.Pruned{}, err
	}
	return pruned, nil
}

// pruneBound is what may be deleted: up to last (NULL: nothing) and older than the
// retention in microseconds.
type pruneBound struct {
	last      sql.Null[int64]
	retention int64
	abandoned []string
}

func readPruneBound(ctx context.Context, tx *sql.Tx, abandonAfter time.Duration) (bound pruneBound, err error) {
	if err := tx.QueryRowContext(ctx, passed, microseconds(abandonAfter)).Scan(&bound.last, &bound.retention); err != nil {
		return bound, failed("prune log", err)
	}
	bound.abandoned, err = column[string](ctx, tx, abandoned+` ORDER BY r.name`, microseconds(abandonAfter))
	if err != nil {
		return bound, failed("prune log", err)
	}
	return bound, nil
}
