package postgres

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// hindmostSQL reads the position of the lane that is furthest behind: of two snapshots
// that were taken one after the other, the earlier one. Its open window is dropped, and what
// any lane was to handle again is handled again by all.
const hindmostSQL = `
SELECT l.seen::text, l.floor, (SELECT coalesce(pg_catalog.min(a.replay), 0) FROM {schema}.relay_lane a WHERE a.relay = $1::text AND a.replay > 0)
FROM {schema}.relay_lane l
WHERE l.relay = $1::text
ORDER BY pg_catalog.pg_snapshot_xmax(l.seen), pg_catalog.pg_snapshot_xmin(l.seen),
	(SELECT pg_catalog.count(*) FROM pg_catalog.pg_snapshot_xip(l.seen)) DESC, l.floor
LIMIT 1`

const setLanesSQL = `UPDATE {schema}.relay SET lanes = $2::integer WHERE name = $1::text`

const removeSurplusSQL = `DELETE FROM {schema}.relay_lane WHERE relay = $1::text AND lane >= $2::integer`

// placeLanesSQL puts all lanes at one position, by the index relay_lane_pkey.
const placeLanesSQL = `
INSERT INTO {schema}.relay_lane AS l (relay, lane, epoch, seen, floor, replay)
SELECT $1::text, n, 1, $3::text::pg_snapshot, $4::bigint, $5::bigint FROM pg_catalog.generate_series(0, $2::integer - 1) AS n
ON CONFLICT (relay, lane) DO UPDATE SET epoch = l.epoch + 1, owner = NULL, seen = EXCLUDED.seen, floor = EXCLUDED.floor,
	target = NULL, target_floor = 0, last = 0, replay = EXCLUDED.replay, xid = EXCLUDED.xid`

// moveAsidesSQL puts what is set aside in the lanes where its events are now, by the
// indexes aside_pkey and outbox_pkey.
const moveAsidesSQL = `
UPDATE {schema}.aside a SET lane = e.slot OPERATOR(pg_catalog.%) r.lanes
FROM {schema}.outbox e, {schema}.relay r
WHERE a.relay = $1::text AND e.number = a.number AND r.name = $1::text AND a.lane <> e.slot OPERATOR(pg_catalog.%) r.lanes`

// dropUnpassedSQL removes what was set aside and is read again.
const dropUnpassedSQL = `
DELETE FROM {schema}.aside a USING {schema}.outbox e, {schema}.relay_lane l
WHERE a.relay = $1::text AND e.number = a.number AND l.relay = $1::text AND l.lane = a.lane AND a.state <> 'skipped' AND NOT ` + passedSQL + `
RETURNING a.lane, coalesce(a.key_hash, '')`

// ChangeLanes implements outbox.OperatorStore.
func (d *Database[Tx]) ChangeLanes(ctx context.Context, relay string, lanes int) error {
	if err := outbox.CheckLanes(lanes); err != nil {
		return fmt.Errorf("postgres: change the lanes of relay %.100q: %w", relay, err)
	}
	return d.onRelay(ctx, "change the lanes of a relay", relay, func(ctx context.Context, r lockedRelay) error {
		if err := d.refuseRunning(ctx, r); err != nil {
			return err
		}
		var at outbox.Position
		err := r.query(ctx, query{d.sql(hindmostSQL), []any{relay}, func(row scanner) error { return row.Scan(&at.Seen, &at.Floor, &at.Replay) }})
		if err != nil {
			return err
		}
		for _, s := range []query{
			{setLanesSQL, []any{relay, int64(lanes)}, nil},
			{removeSurplusSQL, []any{relay, int64(lanes)}, nil},
			{placeLanesSQL, []any{relay, int64(lanes), at.Seen, at.Floor, at.Replay}, nil},
			{moveAsidesSQL, []any{relay}, nil},
		} {
			if _, err := r.exec(ctx, d.sql(s.statement), s.args...); err != nil {
				return err
			}
		}
		keys := keySet{}
		if err := r.query(ctx, query{d.sql(dropUnpassedSQL), []any{relay}, keys.scan}); err != nil {
			return err
		}
		_, err = d.promote(ctx, r, relay, keys)
		return err
	})
}
