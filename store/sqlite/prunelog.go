package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/onceward/onceward/outbox"
)

// abandoned are the relays of which nobody has had a lease for longer than ?1. If nobody
// has one of any relay, that time does not count.
const abandoned = `
SELECT r.name FROM onceward_relay AS r
WHERE coalesce(r.seen_at, r.created_at) < min(` + now + `, ` + lastRun + `) - ?1
  AND NOT EXISTS (SELECT 1 FROM onceward_relay_instance AS i WHERE i.relay = r.name AND i.` + isLive + `)`

// prunable looks at the events behind ?2, at most ?3 of them, by the primary key. Each
// is old enough or not (without relays none is), and may go or not: whether some lane
// has not passed it, and whether it is set aside, is looked up in the primary keys, for each relay.
// Those ahead of the clock, which was ahead once, do not say that what is behind them is young.
const prunable = `
SELECT e.number, e.old OR e.ahead, e.old
  AND NOT EXISTS (
    SELECT 1 FROM onceward_relay AS r CROSS JOIN onceward_relay_lane AS l ON l.relay = r.name AND l.lane = e.slot % r.lanes
    WHERE l.last < e.number AND r.name NOT IN (` + abandoned + `))
  AND NOT EXISTS (SELECT 1 FROM onceward_relay AS r CROSS JOIN onceward_aside AS a ON a.relay = r.name AND a.number = e.number)
FROM (
    SELECT number, onceward_slot(key, number) AS slot,
        coalesce(created_at <= ` + now + ` - (SELECT max(retention) FROM onceward_relay), 0) AS old,
        created_at > ` + now + ` AS ahead
    FROM onceward_event WHERE number > ?2 ORDER BY number LIMIT ?3) AS e
ORDER BY e.number`

const deleteEvents = `DELETE FROM onceward_event WHERE number IN (SELECT value FROM json_each(?1))`

// PruneLog implements outbox.RelayStore. It takes the write lock only if there is
// something to delete. Of two calls in this process the second does nothing;
// another process's is a writer like any other.
func (s *Store) PruneLog(ctx context.Context, after int64, limit int, abandonAfter time.Duration) (outbox.Pruned, error) {
	if limit <= 0 {
		return outbox.Pruned{}, fmt.Errorf("sqlite: prune log: the limit is %d: it must be positive", limit)
	}
	if !s.pruningLog.TryLock() {
		return outbox.Pruned{Next: after}, nil
	}
	defer s.pruningLog.Unlock()

	var step pruneStep
	look := func(ctx context.Context, tx *sql.Tx) (err error) {
		if step, err = lookForPrunable(ctx, tx, after, limit, abandonAfter); err != nil {
			return failed("prune log", err)
		}
		return nil
	}
	err := s.read(ctx, func(tx *sql.Tx) error { return look(ctx, tx) })
	if err == nil && len(step.prunable) > 0 {
		err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if err := look(ctx, tx); err != nil { // again: an operator may have set lanes back
				return err
			}
			numbers, err := json.Marshal(step.prunable)
			if err == nil {
				_, err = tx.ExecContext(ctx, deleteEvents, string(numbers))
			}
			if err != nil {
				return failed("prune log", err)
			}
			return nil
		})
	}
	if err != nil {
		return outbox.Pruned{}, err
	}
	step.Events = len(step.prunable)
	return step.Pruned, nil
}

// pruneStep is what a call of PruneLog is to delete, and what it returns.
type pruneStep struct {
	outbox.Pruned

	prunable []int64
}

func lookForPrunable(ctx context.Context, tx *sql.Tx, after int64, limit int, abandonAfter time.Duration) (step pruneStep, err error) {
	step.Abandoned, err = column[string](ctx, tx, abandoned+` ORDER BY r.name`, microseconds(abandonAfter))
	if err != nil {
		return step, err
	}
	rows, err := tx.QueryContext(ctx, prunable, microseconds(abandonAfter), after, limit)
	if err != nil {
		return step, err
	}
	defer func() { _ = rows.Close() }()
	var last int64
	goesOn := false
	for rows.Next() {
		var oldOrAhead, mayGo bool
		if err := rows.Scan(&last, &oldOrAhead, &mayGo); err != nil {
			return step, err
		}
		step.Looked++
		goesOn = goesOn || oldOrAhead
		if mayGo {
			step.prunable = append(step.prunable, last)
		}
	}
	if goesOn && step.Looked == limit {
		step.Next = last
	}
	return step, rows.Err()
}
