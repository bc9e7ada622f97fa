package postgres

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// keySet collects keys of which something is gone, from rows with lane and key_hash.
type keySet map[keyDocument]struct{}

func (k keySet) scan(row scanner) error {
	var key keyDocument
	err := row.Scan(&key.Lane, &key.Hash)
	if err == nil && key.Hash != "" {
		k[key] = struct{}{}
	}
	return err
}

// selectAsides selects what is set aside by the index aside_pkey, whose order is the
// result's, so that it stops at the limit. The events come by outbox_pkey.
func (d *Database[Tx]) selectAsides(columns, relay string, f outbox.Filter, row func(scanner) error) query {
	where := conditions{args: []any{relay}}
	where.among("a.number", f.Numbers)
	if f.After != 0 {
		where.and("a.number > $%d::bigint", f.After)
	}
	if f.State != "" {
		where.and("a.state = $%d::text", string(f.State))
	}
	if f.Topic != "" {
		where.and("o.topic = $%d::text", f.Topic)
	}
	if f.MessageID != "" {
		where.and("o.message_id = $%d::text", f.MessageID)
	}
	where.args = append(where.args, int64(f.Limit), !f.Brief)
	statement := fmt.Sprintf(`WITH hex AS MATERIALIZED (SELECT `+hexSQL+`)
SELECT %s FROM hex, (SELECT %s, $%d::boolean AS kept
FROM {schema}.aside a LEFT JOIN {schema}.outbox o ON o.number = a.number
WHERE a.relay = $1::text%s ORDER BY a.number LIMIT $%d::bigint) e ORDER BY e.number`,
		columns, asideEvent, len(where.args), where.text.String(), len(where.args)-1)
	return query{d.sql(statement), where.args, row}
}

// SetAside implements outbox.OperatorStore.
func (d *Database[Tx]) SetAside(ctx context.Context, relay string, filter outbox.Filter) ([]outbox.AsideEvent, error) {
	var events []outbox.AsideEvent
	err := d.inTransaction(ctx, "list what is set aside", func(ctx context.Context, r runner) error {
		if _, err := d.registration(ctx, r, relay); err != nil {
			return err
		}
		var from asideRow
		return r.query(ctx, d.selectAsides(asideColumns, relay, filter, func(row scanner) error {
			if err := row.Scan(from.dest()...); err != nil {
				return err
			}
			events = append(events, from.asideEvent())
			return nil
		}))
	})
	if err != nil {
		return nil, err
	}
	return events, nil
}

// redriveSQL goes by the index aside_pkey.
const redriveSQL = `
UPDATE {schema}.aside a
SET state = CASE WHEN $3::boolean AND a.key_hash IS NOT NULL THEN 'retrying' ELSE 'delayed' END,
	due_at = pg_catalog.clock_timestamp(), attempts = 0
WHERE a.relay = $1::text AND a.number = ANY ($2::text::bigint[])`

// Redrive implements outbox.OperatorStore.
func (d *Database[Tx]) Redrive(ctx context.Context, relay string, filter outbox.Filter) (int, error) {
	return d.onDead(ctx, "redrive", relay, filter, func(ctx context.Context, r lockedRelay, dead deadSet) error {
		_, err := r.exec(ctx, d.sql(redriveSQL), relay, dead.numbers.String(), r.policy == outbox.ParkKey)
		return err
	})
}

// Discard implements outbox.OperatorStore.
func (d *Database[Tx]) Discard(ctx context.Context, relay string, filter outbox.Filter) (int, error) {
	return d.onDead(ctx, "discard", relay, filter, func(ctx context.Context, r lockedRelay, dead deadSet) error {
		return d.pass(ctx, r, dead.numbers.String(), dead.keys)
	})
}

// deadSet are dead letters that were selected.
type deadSet struct {
	numbers arrayLiteral
	keys    keySet
}

func (d *Database[Tx]) onDead(
	ctx context.Context, doing, relay string, filter outbox.Filter, change func(ctx context.Context, r lockedRelay, dead deadSet) error,
) (count int, err error) {
	err = d.onRelay(ctx, doing, relay, func(ctx context.Context, r lockedRelay) error {
		if filter.State != "" && filter.State != outbox.Dead {
			return nil
		}
		filter.State = outbox.Dead
		dead, lanes := deadSet{keys: keySet{}}, map[int]struct{}{}
		err := r.query(ctx, d.selectAsides("e.number, e.lane, e.key_hash", relay, filter, func(row scanner) error {
			var number int64
			var key keyDocument
			if err := row.Scan(&number, &key.Lane, &key.Hash); err != nil {
				return err
			}
			count++
			dead.numbers.addInt(number)
			lanes[key.Lane] = struct{}{}
			if key.Hash != "" {
				dead.keys[key] = struct{}{}
			}
			return nil
		}))
		if err != nil || count == 0 {
			return err
		}
		if err := change(ctx, r, dead); err != nil {
			return err
		}
		return d.handOver(ctx, r, lanes)
	})
	if err != nil {
		return 0, err
	}
	return count, nil
}

// keepUnpassedSQL notes, of what is set aside and is to go, what the lane has yet to
// read: by the indexes aside_pkey, outbox_pkey and relay_lane_pkey.
const keepUnpassedSQL = `
UPDATE {schema}.aside a SET state = 'skipped', due_at = NULL
FROM {schema}.outbox e, {schema}.relay_lane l
WHERE a.relay = $1::text AND a.number = ANY ($2::text::bigint[])
AND e.number = a.number AND l.relay = $1::text AND l.lane = a.lane AND NOT ` + passedSQL

//nolint:gosec // No password.
const removePassedSQL = `
DELETE FROM {schema}.aside a WHERE a.relay = $1::text AND a.number = ANY ($2::text::bigint[]) AND a.state <> 'skipped'`

// pass gives up what is set aside. What the lane has not passed would be published when it
// gets there, and is skipped instead.
func (d *Database[Tx]) pass(ctx context.Context, r lockedRelay, numbers string, keys keySet) error {
	for _, statement := range []string{keepUnpassedSQL, removePassedSQL} {
		if _, err := r.exec(ctx, d.sql(statement), r.name, numbers); err != nil {
			return err
		}
	}
	_, err := d.promote(ctx, r, r.name, keys)
	return err
}

// placeOfSQL says where an event stands: by the indexes outbox_pkey and relay_lane_pkey.
const placeOfSQL = `
SELECT l.lane, ` + passedSQL + `, ` + matchesSQL + `
FROM {schema}.outbox e, {schema}.relay r, {schema}.relay_lane l
WHERE e.number = $2::bigint AND r.name = $1::text AND l.relay = $1::text AND l.lane = e.slot OPERATOR(pg_catalog.%) r.lanes`

const skipSQL = `INSERT INTO {schema}.aside (relay, number, lane, state, attempts, error) VALUES ($1::text, $2::bigint, $3::integer, 'skipped', 0, '')`

// asideOfSQL goes by the index aside_pkey.
const asideOfSQL = `SELECT a.lane, coalesce(a.key_hash, ''), a.state FROM {schema}.aside a WHERE a.relay = $1::text AND a.number = $2::bigint`

// noEvent says why there is no event of a number.
func (d *Database[Tx]) noEvent(ctx context.Context, r runner, number int64) error {
	last, err := d.lastNumber(ctx, r)
	switch {
	case err != nil:
		return err
	case number > last:
		return fmt.Errorf("%w: number %d was not given yet, the last one is %d: take it from SetAside, Status or the log", outbox.ErrNoEvent, number, last)
	}
	return fmt.Errorf("%w: event %d was pruned, rolled back, or its transaction is still open, as Holders tells", outbox.ErrNoEvent, number)
}

// Skip implements outbox.OperatorStore.
func (d *Database[Tx]) Skip(ctx context.Context, relay string, number int64) error {
	return d.onRelay(ctx, "skip", relay, func(ctx context.Context, r lockedRelay) error {
		var key keyDocument
		var state string
		err := r.query(ctx, query{d.sql(asideOfSQL), []any{relay, number}, func(row scanner) error { return row.Scan(&key.Lane, &key.Hash, &state) }})
		switch {
		case err != nil, state == string(outbox.Skipped):
			return err
		case state != "":
			keys := keySet{}
			if key.Hash != "" {
				keys[key] = struct{}{}
			}
			var numbers arrayLiteral
			numbers.addInt(number)
			if err := d.pass(ctx, r, numbers.String(), keys); err != nil {
				return err
			}
			return d.handOver(ctx, r, map[int]struct{}{key.Lane: {}})
		}
		lane, passed, matches := -1, false, false
		err = r.query(ctx, query{d.sql(placeOfSQL), []any{relay, number}, func(row scanner) error { return row.Scan(&lane, &passed, &matches) }})
		switch {
		case err != nil:
			return err
		case lane < 0:
			return d.noEvent(ctx, r, number)
		case passed:
			return fmt.Errorf("%w: event %d", outbox.ErrPassed, number)
		case !matches:
			return nil // The relay passes it anyhow, and would never take back what was set aside.
		}
		if _, err := r.exec(ctx, d.sql(skipSQL), relay, number, int64(lane)); err != nil {
			return err
		}
		return d.handOver(ctx, r, map[int]struct{}{lane: {}})
	})
}
