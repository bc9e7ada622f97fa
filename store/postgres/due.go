package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// dueSQL reads what was set aside and is due, by the index aside_due, for each lane by
// itself, and of each a share: others may have more than all of these. Of those that are not due,
// hundreds of thousands perhaps, it looks at the first one of each lane. What is behind a
// retrying event comes by aside_key, the events by outbox_pkey. One that somebody has
// deleted from the log comes without its contents.
//
// {share} is a number, and no larger than it must be, for the planner: of eight thousand rows of each
// lane it expects so much that it would compile the statement to machine code each time, which
// takes a hundred times as long as finding nothing.
//
// The last row has the number 0 and says when the first of the others is due.
//
//nolint:dupword,unqueryvet // SQL repeats itself. The columns are named once.
const dueSQL = `
WITH hex AS MATERIALIZED (
	SELECT ` + hexSQL + `
), clock AS MATERIALIZED (
	SELECT pg_catalog.clock_timestamp() AS now
), candidate AS MATERIALIZED (
	SELECT a.*, pg_catalog.row_number() OVER (ORDER BY a.due_at, a.number) AS place,
		pg_catalog.row_number() OVER (PARTITION BY a.lane ORDER BY a.due_at, a.number) AS place_in_lane,
		a.due_at <= (SELECT now FROM clock) AS is_due
	FROM hex, pg_catalog.unnest($2::text::integer[]) AS n (lane)
	CROSS JOIN LATERAL (
		(SELECT a.number, a.lane, a.state, a.key_hash, a.due_at, a.attempts, a.error FROM {schema}.aside a
		WHERE a.relay = $1::text AND a.lane = n.lane AND a.due_at <= (SELECT now FROM clock)
		ORDER BY a.relay, a.lane, a.due_at LIMIT {share} + 1)
		UNION ALL
		(SELECT a.number, a.lane, a.state, a.key_hash, a.due_at, a.attempts, a.error FROM {schema}.aside a
		WHERE a.relay = $1::text AND a.lane = n.lane AND a.due_at > (SELECT now FROM clock)
		ORDER BY a.relay, a.lane, a.due_at LIMIT 1)
	) a
), due AS MATERIALIZED (
	SELECT c.* FROM candidate c WHERE c.is_due AND c.place <= $3::bigint AND c.place_in_lane <= {share}
), listed AS (
	SELECT d.place, false AS waited, d.number FROM due d
	UNION ALL
	SELECT d.place, true, b.number
	FROM due d CROSS JOIN LATERAL (
		SELECT b.number FROM {schema}.aside b
		WHERE d.state = 'retrying' AND b.relay = $1::text AND b.lane = d.lane AND b.key_hash = d.key_hash AND b.state = 'behind'
		ORDER BY b.relay, b.lane, b.key_hash, b.number LIMIT {limit}
	) b
	ORDER BY place, waited, number LIMIT $3::bigint
), event AS (
	SELECT l.place, l.waited, {event}
	FROM listed l
	JOIN {schema}.aside a ON a.relay = $1::text AND a.number = l.number
	LEFT JOIN {schema}.outbox o ON o.number = a.number
)
SELECT {columns}, fits
FROM (
	SELECT e.*, total <= $4::bigint AS fits, total <= $4::bigint OR total = size AS kept
	FROM (SELECT e.*, pg_catalog.sum(size) OVER (ORDER BY e.place, e.waited, e.number ROWS UNBOUNDED PRECEDING) AS total
		FROM (SELECT e.*, {size} AS size FROM event e) e) e
	WHERE total - size <= $4::bigint
) e
UNION ALL
SELECT 0, 0, '', '', NULL, NULL, NULL, 0, (
		SELECT (pg_catalog.date_part('epoch', pg_catalog.min(c.due_at) OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())
			OPERATOR(pg_catalog.*) 1000000)::bigint
		FROM candidate c WHERE NOT c.is_due OR c.place > $3::bigint OR c.place_in_lane > {share}
	), NULL, 0, false, 0, '', '', 0, '', NULL, NULL, 0, true`

// minDueShare makes one call of a few events of many lanes.
const minDueShare = 64

// Due implements outbox.RelayStore.
func (d *Database[Tx]) Due(ctx context.Context, relay string, lanes []int, limit, maxBytes int) (outbox.Due, error) {
	if limit <= 0 {
		return outbox.Due{}, fmt.Errorf("postgres: Due: the limit is %d: ask for one event at least", limit)
	}
	var due outbox.Due
	var r asideRow
	fits, cut := false, false
	statement := d.sql(strings.NewReplacer("{event}", asideEvent, "{columns}", asideColumns, "{size}", eventSize,
		"{limit}", planLimit(limit), "{share}", planLimit(dueShare(limit, len(lanes)))).Replace(dueSQL))
	args := []any{relay, lanesLiteral(lanes), int64(limit), int64(max(maxBytes, 0))}
	err := d.alone(ctx, "read what is due", query{statement, args, func(row scanner) error {
		if err := row.Scan(append(r.dest(), &fits)...); err != nil {
			return err
		}
		if r.number == 0 {
			due.Next = fromNow(r.deliverAfter)
			return nil
		}
		if !fits {
			cut = true
			if len(due.Events) > 0 {
				return nil
			}
		}
		e := r.asideEvent()
		due.Events = append(due.Events, e.Event)
		due.Asides = append(due.Asides, e.Aside)
		return nil
	}})
	if err != nil {
		return outbox.Due{}, err
	}
	if cut || len(due.Events) == limit {
		due.Next = 0
	}
	return due, nil
}

// dueShare is how many of a lane are due at a time at most: twice what each has if all have as
// many. What is left comes with the next call.
func dueShare(limit, lanes int) int {
	return min(limit, max(minDueShare, 2*limit/max(1, lanes)))
}
