package postgres

import (
	"context"
	"time"

	"github.com/onceward/onceward/outbox"
)

// relayNamesSQL reads the whole of a table with a row for each relay.
const relayNamesSQL = `
SELECT r.name, (pg_catalog.date_part('epoch', GREATEST(r.seen_at,
	(SELECT pg_catalog.max(i.seen_at) FROM {schema}.relay_instance i WHERE i.relay = r.name))) OPERATOR(pg_catalog.*) 1000000)::bigint
FROM {schema}.relay r ORDER BY r.name`

// instancesSQL goes by the index relay_instance_pkey.
const instancesSQL = `
SELECT i.instance, (pg_catalog.date_part('epoch', i.lease_until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint
FROM {schema}.relay_instance i WHERE i.relay = $1::text ORDER BY i.instance`

// laneStatusSQL counts, for each lane of a relay, what it has not passed: rows above its floor or
// what it replays, by the index outbox_pkey, and below it those of late
// transactions, by outbox_xid. For a lane with few events it reads those of all lanes.
const laneStatusSQL = `
SELECT l.lane, coalesce(l.owner, ''), l.epoch, c.events,
	coalesce((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) c.oldest) OPERATOR(pg_catalog.*) 1000000)::bigint, 0)
FROM {schema}.relay r
JOIN {schema}.relay_lane l ON l.relay = r.name
CROSS JOIN LATERAL (SELECT LEAST(l.floor, NULLIF(l.replay, 0) - 1) AS number) start
CROSS JOIN LATERAL (
	SELECT pg_catalog.count(*) AS events, pg_catalog.min(u.created_at) AS oldest
	FROM (
		(SELECT e.created_at FROM pg_catalog.pg_snapshot_xip(l.seen) AS x (xid) CROSS JOIN LATERAL (
			SELECT e.created_at FROM {schema}.outbox e
			WHERE (e.xid, e.number) > (x.xid, 0::bigint) AND (e.xid, e.number) <= (x.xid, start.number)
			AND e.slot OPERATOR(pg_catalog.%) r.lanes = l.lane AND NOT ` + passedSQL + ` AND ` + matchesSQL + `
			ORDER BY e.xid, e.number LIMIT $2::bigint
		) e)
		UNION ALL
		(SELECT e.created_at FROM {schema}.outbox e
		WHERE e.number > start.number AND e.slot OPERATOR(pg_catalog.%) r.lanes = l.lane AND NOT ` + passedSQL + ` AND ` + matchesSQL + `
		ORDER BY e.number LIMIT $2::bigint)
		LIMIT $2::bigint
	) u
) c
WHERE r.name = $1::text
ORDER BY l.lane`

// asideCountsSQL goes by the index aside_pkey.
const asideCountsSQL = `
SELECT a.lane, a.state, pg_catalog.count(*), pg_catalog.min(a.number)
FROM {schema}.aside a WHERE a.relay = $1::text GROUP BY a.lane, a.state`

// Relays implements outbox.OperatorStore.
func (d *Database[Tx]) Relays(ctx context.Context, countLimit int) ([]outbox.RelayStatus, error) {
	var relays []outbox.RelayStatus
	err := d.inTransaction(ctx, "describe relays", func(ctx context.Context, r runner) error {
		err := r.query(ctx, query{d.sql(relayNamesSQL), nil, func(row scanner) error {
			var status outbox.RelayStatus
			var seenAt int64
			err := row.Scan(&status.Relay, &seenAt)
			status.SeenAt = time.UnixMicro(seenAt).UTC()
			relays = append(relays, status)
			return err
		}})
		for i := 0; err == nil && i < len(relays); i++ {
			err = d.describe(ctx, r, &relays[i], countLimit)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return relays, nil
}

func (d *Database[Tx]) describe(ctx context.Context, r runner, relay *outbox.RelayStatus, countLimit int) (err error) {
	if relay.Registration, err = d.registration(ctx, r, relay.Relay); err != nil {
		return err
	}
	err = r.query(ctx, query{d.sql(instancesSQL), []any{relay.Relay}, func(row scanner) error {
		var i outbox.Instance
		var lease int64
		err := row.Scan(&i.Name, &lease)
		i.Lease = duration(lease)
		relay.Instances = append(relay.Instances, i)
		return err
	}})
	if err != nil {
		return err
	}
	places := map[int]int{}
	err = r.query(ctx, query{d.sql(laneStatusSQL), []any{relay.Relay, int64(countLimit)}, func(row scanner) error {
		lane := outbox.LaneStatus{Aside: map[outbox.State]int{}}
		var age int64
		err := row.Scan(&lane.Lane, &lane.Owner, &lane.Epoch, &lane.Events, &age)
		lane.Age = duration(age)
		places[lane.Lane] = len(relay.Status)
		relay.Status = append(relay.Status, lane)
		return err
	}})
	if err != nil {
		return err
	}
	return r.query(ctx, query{d.sql(asideCountsSQL), []any{relay.Relay}, func(row scanner) error {
		var lane, count int
		var state string
		var first int64
		if err := row.Scan(&lane, &state, &count, &first); err != nil {
			return err
		}
		if place, known := places[lane]; known {
			status := &relay.Status[place]
			status.Aside[outbox.State(state)] = count
			if outbox.State(state) == outbox.Retrying && relay.Policy == outbox.BlockLane {
				status.HeldBy = first
			}
		}
		return nil
	}})
}
