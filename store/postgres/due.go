package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// dueSQL reads what was set aside and is due, by the index aside_due, for each lane by
// itself: others may have more than all of these. What is behind a retrying event comes
// by aside_key, the events by outbox_pkey. One that somebody has deleted from the
// log comes without its contents.
//
// The last row has the number 0 and says when the first of the others is due.
//
//nolint:dupword,unqueryvet // SQL repeats itself. The columns are named once.
const dueSQL = `
WITH hex AS MATERIALIZED (
	SELECT ` + hexSQL + `
), candidate AS MATERIALIZED (
	SELECT a.*, pg_catalog.row_number() OVER (ORDER BY a.due_at, a.number) AS place, a.due_at <= (SELECT pg_catalog.clock_timestamp()) AS is_due
	FROM hex, pg_catalog.unnest($2::text::integer[]) AS n (lane)
	CROSS JOIN LATERAL (
		SELECT a.number, a.lane, a.state, a.key_hash, a.due_at, a.attempts, a.error FROM {schema}.aside a
		WHERE a.relay = $1::text AND a.lane = n.lane AND a.due_at IS NOT NULL
		ORDER BY a.relay, a.lane, a.due_at LIMIT {limit} + 1
	) a
), due AS MATERIALIZED (
	SELECT c.* FROM candidate c WHERE c.is_due AND c.place <= $3::bigint
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
		FROM candidate c WHERE NOT c.is_due OR c.place > $3::bigint
	), NULL, false, 0, '', '', 0, '', NULL, NULL, 0, true`

// Due implements outbox.RelayStore.
func (d *Database[Tx]) Due(ctx context.Context, relay string, lanes []int, limit, maxBytes int) (outbox.Due, error) {
	if limit <= 0 {
		return outbox.Due{}, fmt.Errorf("postgres: Due: the limit is %d: ask for one event at least", limit)
	}
	var due outbox.Due
	var r asideRow
	fits, cut := false, false
	statement := d.sql(strings.NewReplacer("{event}", asideEvent, "{columns}", asideColumns, "{size}", eventSize, "{limit}", planLimit(limit)).Replace(dueSQL))
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
