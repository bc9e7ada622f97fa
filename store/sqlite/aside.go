package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/onceward/onceward/outbox"
)

// inLanes is the condition that something set aside is in lanes of a JSON array.
const inLanes = `a.lane IN (SELECT value FROM json_each(?2))`

// held finds by the primary key what is ahead of its lane, by onceward_aside_key what is
// retrying or skipped, and then the first other one of each key that has nothing retrying.
// What is delayed and was passed can be a lot, and is not looked at.
const held = `
WITH ahead AS MATERIALIZED (
    SELECT a.number FROM onceward_aside AS a
    CROSS JOIN onceward_relay_lane AS l ON l.relay = ?1 AND l.lane = a.lane
    WHERE a.relay = ?1 AND ` + inLanes + ` AND a.number > l.last
      AND a.number > (SELECT min(f.last) FROM onceward_relay_lane AS f WHERE f.relay = ?1 AND f.lane IN (SELECT value FROM json_each(?2)))
)
SELECT a.number, a.lane, a.state, a.key_hash, a.due_at - ` + now + `, a.number IN (SELECT number FROM ahead)
FROM onceward_aside AS a INDEXED BY onceward_aside_key
WHERE a.relay = ?1 AND a.state IN ('retrying', 'skipped') AND ` + inLanes + `
UNION ALL
SELECT min(a.number), a.lane, a.state, a.key_hash, NULL, false FROM onceward_aside AS a INDEXED BY onceward_aside_key
WHERE a.relay = ?1 AND a.state IN ('behind', 'dead') AND a.key_hash IS NOT NULL AND ` + inLanes + `
  AND a.number NOT IN (SELECT number FROM ahead)
  AND NOT EXISTS (SELECT 1 FROM onceward_aside AS r WHERE r.relay = ?1 AND r.state = 'retrying' AND r.key_hash = a.key_hash)
GROUP BY a.key_hash
UNION ALL
SELECT a.number, a.lane, a.state, a.key_hash, a.due_at - ` + now + `, true
FROM ahead AS h CROSS JOIN onceward_aside AS a ON a.relay = ?1 AND a.number = h.number
WHERE a.state NOT IN ('retrying', 'skipped')`

// Held implements outbox.RelayStore. It reads beside the writers.
func (s *Store) Held(ctx context.Context, relay string, lanes []int) ([]outbox.Aside, error) {
	list, err := laneList(lanes)
	if err != nil {
		return nil, failed("read what is held", err)
	}
	rows, err := s.db.QueryContext(ctx, held, relay, list)
	if err != nil {
		return nil, failed("read what is held", err)
	}
	defer func() { _ = rows.Close() }()
	var asides []outbox.Aside
	for rows.Next() {
		var row asideRow
		if err := rows.Scan(&row.Number, &row.Lane, &row.State, &row.keyHash, &row.after, &row.Ahead); err != nil {
			return nil, failed("read what is held", err)
		}
		asides = append(asides, row.aside())
	}
	if err := rows.Err(); err != nil {
		return nil, failed("read what is held", err)
	}
	return asides, nil
}

// asideRow is what is set aside, as it is scanned.
type asideRow struct {
	outbox.Aside

	keyHash *string
	after   *int64
	missing bool
}

// asideEvent are the columns of an event that is set aside, and before them whether
// somebody has deleted it from the log.
const asideEvent = `e.number IS NULL, a.number, coalesce(e.topic, ''), coalesce(e.id, ''), coalesce(e.created_at, a.set_aside_at),
    e.deliver_after, e.deliver_after - ` + now + `, e.key, ` + contentBytes

var errMissing = errors.New("the event was deleted from the log while it was set aside: discard it")

// event is what was scanned with the row. One that is missing is in the lane that it was in.
func (r *asideRow) event(of *eventRow, lanes int) outbox.Event {
	e := of.event(lanes)
	e.Attempts = r.Attempts
	if r.missing {
		e.Lane, e.Invalid = r.Lane, errMissing
	}
	return e
}

func (r *asideRow) aside() outbox.Aside {
	a := r.Aside
	if r.keyHash != nil {
		a.KeyHash = *r.keyHash
	}
	if r.after != nil {
		a.After = duration(*r.after)
	}
	return a
}

// dueEvents finds what is due at the time ?3 in onceward_aside_due, and what is
// behind it in onceward_aside_key; then the events by the primary key. ahead and
// place keep those behind an event with it, in order.
const dueEvents = `
WITH due AS (
    SELECT a.number, a.state, a.key_hash, a.due_at FROM onceward_aside AS a
    WHERE a.relay = ?1 AND a.due_at <= ?3 AND ` + inLanes + `
    ORDER BY a.due_at, a.number LIMIT ?4
), chosen AS (
    SELECT due_at, number AS ahead, 0 AS place, number FROM due
    UNION ALL
    SELECT d.due_at, d.number, 1, b.number FROM due AS d
    CROSS JOIN onceward_aside AS b ON b.relay = ?1 AND b.state = 'behind' AND b.key_hash = d.key_hash
    WHERE d.state = 'retrying'
    ORDER BY 1, 2, 3, 4 LIMIT ?4
)
SELECT a.lane, a.state, a.key_hash, a.due_at - ?3, a.attempts, a.error, ` + asideEvent + `, ` + eventContent + `
FROM chosen AS c
CROSS JOIN onceward_aside AS a ON a.relay = ?1 AND a.number = c.number
LEFT JOIN onceward_event AS e ON e.number = c.number
ORDER BY c.due_at, c.ahead, c.place, c.number`

// Due implements outbox.RelayStore. It reads beside the writers.
func (s *Store) Due(ctx context.Context, relay string, lanes []int, limit, maxBytes int) (outbox.Due, error) {
	list, err := laneList(lanes)
	if err != nil {
		return outbox.Due{}, failed("read what is due", err)
	}
	due := outbox.Due{Next: -1}
	err = s.read(ctx, func(tx *sql.Tx) error {
		r, err := registrationOf(ctx, tx, relay)
		if errors.Is(err, outbox.ErrNoRelay) {
			return nil
		}
		if err != nil {
			return err
		}
		// One time for both statements: nothing becomes due between them.
		var clock int64
		if err := tx.QueryRowContext(ctx, `SELECT `+now).Scan(&clock); err != nil {
			return failed("read what is due", err)
		}
		more, err := readDue(ctx, tx, &due, r.Lanes, limit, maxBytes, relay, list, clock)
		if err == nil && more {
			due.Next = 0
			return nil
		}
		if err == nil {
			due.Next, err = dueAfter(ctx, tx, relay, list, clock)
		}
		if err != nil {
			return failed("read what is due", err)
		}
		return nil
	})
	if err != nil {
		return outbox.Due{}, err
	}
	return due, nil
}

// readDue returns whether more is due than the bounds allow.
func readDue(ctx context.Context, q querier, due *outbox.Due, allLanes, limit, maxBytes int, relay, lanes string, clock int64) (more bool, err error) {
	rows, err := q.QueryContext(ctx, dueEvents, relay, lanes, clock, limit+1)
	if err != nil {
		return false, err
	}
	defer func() { _ = rows.Close() }()
	bytes := 0
	for rows.Next() {
		var a asideRow
		var e eventRow
		if err := rows.Scan(append([]any{&a.Lane, &a.State, &a.keyHash, &a.after, &a.Attempts, &a.Error, &a.missing}, e.whole()...)...); err != nil {
			return false, err
		}
		a.Number = e.Number
		event := a.event(&e, allLanes)
		bytes += event.Size()
		if len(due.Events) == limit || bytes > maxBytes && len(due.Events) > 0 {
			return true, nil
		}
		due.Events = append(due.Events, event)
		due.Asides = append(due.Asides, a.aside())
	}
	return false, rows.Err()
}

// firstDue finds the first one due later than ?3 in onceward_aside_due.
const firstDue = `
SELECT a.due_at - ` + now + ` FROM onceward_aside AS a
WHERE a.relay = ?1 AND a.due_at > ?3 AND ` + inLanes + `
ORDER BY a.due_at LIMIT 1`

// dueAfter is how long it is until the next one is due. Negative: there is none.
func dueAfter(ctx context.Context, q querier, relay, lanes string, clock int64) (time.Duration, error) {
	var wait int64
	err := q.QueryRowContext(ctx, firstDue, relay, lanes, clock).Scan(&wait)
	if errors.Is(err, sql.ErrNoRows) {
		return -1, nil
	}
	return max(0, duration(wait)), err
}
