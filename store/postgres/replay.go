package postgres

import (
	"context"
	"time"
)

// replaySQL sets lanes back, by the index relay_lane_pkey. What they have seen stays, so
// that what is still to be published is, whatever its number; and an open window goes
// on, from the number on if it has passed that.
const replaySQL = `
UPDATE {schema}.relay_lane l
SET replay = LEAST(NULLIF(l.replay, 0), $2::bigint), last = CASE WHEN l.target IS NULL THEN 0 ELSE LEAST(l.last, $2::bigint - 1) END,
	epoch = l.epoch + 1, owner = NULL, xid = pg_catalog.pg_current_xact_id()
WHERE l.relay = $1::text`

const readAgainSQL = `DELETE FROM {schema}.aside a WHERE a.relay = $1::text AND a.number >= $2::bigint RETURNING a.lane, coalesce(a.key_hash, '')`

// Replay implements outbox.OperatorStore.
func (d *Database[Tx]) Replay(ctx context.Context, relay string, from int64) error {
	return d.onRelay(ctx, "replay", relay, func(ctx context.Context, r lockedRelay) error {
		from := max(1, from)
		last, err := d.lastNumber(ctx, r)
		if err != nil {
			return err
		}
		if from > last+1 {
			return d.noEvent(ctx, r, from)
		}
		if _, err := r.exec(ctx, d.sql(replaySQL), relay, from); err != nil {
			return err
		}
		keys := keySet{}
		if err := r.query(ctx, query{d.sql(readAgainSQL), []any{relay, from}, keys.scan}); err != nil {
			return err
		}
		_, err = d.promote(ctx, r, relay, keys)
		return err
	})
}

// firstSinceSQL halves the log, by the index outbox_pkey: numbers and times grow
// together, as far as clocks do. It goes to a minute before, and from there on looks at each event.
const firstSinceSQL = `
WITH RECURSIVE search (low, high) AS (
	SELECT coalesce((SELECT pg_catalog.min(o.number) FROM {schema}.outbox o), s.last_value + 1), s.last_value + 1 FROM {schema}.outbox_number s
	UNION ALL
	SELECT CASE WHEN f.early THEN f.number + 1 ELSE s.low END, CASE WHEN f.early THEN s.high ELSE m.middle END
	FROM search s
	CROSS JOIN LATERAL (SELECT (s.low + s.high) / 2 AS middle) m
	LEFT JOIN LATERAL (
		SELECT o.number, o.created_at < $1::text::timestamptz OPERATOR(pg_catalog.-) interval '1 minute' AS early FROM {schema}.outbox o
		WHERE o.number >= m.middle AND o.number < s.high ORDER BY o.number LIMIT 1
	) f ON true
	WHERE s.low < s.high
)
SELECT coalesce(
	(SELECT o.number FROM {schema}.outbox o
		WHERE o.number >= (SELECT pg_catalog.max(low) FROM search) AND o.created_at >= $1::text::timestamptz ORDER BY o.number LIMIT 1),
	(SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s) + 1)`

// FirstSince implements outbox.OperatorStore.
func (d *Database[Tx]) FirstSince(ctx context.Context, t time.Time) (number int64, err error) {
	since, isSet := timeArg(t).(string)
	if !isSet {
		since, _ = timeArg(t.Add(1)).(string) // The zero time is one, too.
	}
	err = d.alone(ctx, "find the first event", query{d.sql(firstSinceSQL), []any{since}, func(row scanner) error { return row.Scan(&number) }})
	return number, err
}
