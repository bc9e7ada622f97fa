package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// leaseSQL prolongs a lease and takes free lanes. By parts:
//
//	r         the relay, if it is what the instance was registered with: with other lanes or
//	          topics it would pass events that are nobody's, with another policy overtake
//	live      instances whose lease is not over: by the index relay_instance_pkey
//	me        what was known of this instance before
//	lease     … and now. Old leases go, so that the table stays small
//	seen      that somebody runs the relay, see there. Rows are locked before any lane is, as operators do
//	share     lanes by instance, in the order of their names; the first few get one more
//	free      lanes of nobody who lives. An instance without a row is new or was
//	          forgotten in a crash of the server: what it owns is free, even for itself
//	taken     as many as are missing. A lane that is taken at this moment by somebody else is
//	          locked or has another epoch by now, and is left to them. The epoch is a time, so
//	          that none comes twice, even if a crash or a failover loses it
//	freed     what it owned before such a crash and is more than its share, which it would
//	          else find in the next call with the epoch that it knows
//
// All but the leases and what seenSQL reads are rows of one relay: by the indexes
// relay_lane_pkey and aside_due. $4 is 0 if nothing was registered here.
const leaseSQL = `
WITH r AS MATERIALIZED (
	SELECT r.name, r.lanes FROM {schema}.relay r
	WHERE r.name = $1::text AND ` + homeSQL + ` AND ($4::integer = 0 OR r.lanes = $4::integer AND r.policy = $5::text
		AND r.topics @> $6::text::text[] AND r.topics <@ $6::text::text[])
), live AS MATERIALIZED (
	SELECT i.instance FROM {schema}.relay_instance i WHERE i.relay = $1::text AND i.lease_until > pg_catalog.clock_timestamp()
), me AS MATERIALIZED (
	SELECT EXISTS (SELECT FROM {schema}.relay_instance i WHERE i.relay = $1::text AND i.instance = $2::text) AS known
), lease AS (
	INSERT INTO {schema}.relay_instance AS i (relay, instance, seen_at, lease_until)
	SELECT r.name, $2::text, pg_catalog.clock_timestamp(),
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) ($3::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
	FROM r
	ON CONFLICT (relay, instance) DO UPDATE SET seen_at = EXCLUDED.seen_at, lease_until = EXCLUDED.lease_until
), ended AS (
	DELETE FROM {schema}.relay_instance i
	WHERE i.relay = $1::text AND i.instance <> $2::text
	AND i.lease_until < pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 hour'
), ` + seenSQL + `, share AS MATERIALIZED (
	SELECT r.lanes / i.live + CASE WHEN i.before < r.lanes % i.live THEN 1 ELSE 0 END AS lanes
	FROM r CROSS JOIN (
		SELECT (pg_catalog.count(*) FILTER (WHERE live.instance <> $2::text))::integer + 1 AS live,
			(pg_catalog.count(*) FILTER (WHERE live.instance < $2::text))::integer AS before
		FROM live
	) i
), own AS MATERIALIZED (
	SELECT l.* FROM r, {schema}.relay_lane l, me WHERE l.relay = $1::text AND l.owner = $2::text AND me.known
), free AS MATERIALIZED (
	SELECT l.lane, l.epoch FROM r, {schema}.relay_lane l, me
	WHERE l.relay = $1::text AND (l.owner IS NULL
		OR l.owner = $2::text AND NOT me.known
		OR l.owner <> $2::text AND NOT EXISTS (SELECT FROM live WHERE live.instance = l.owner))
), chosen AS MATERIALIZED (
	SELECT l.lane FROM {schema}.relay_lane l JOIN free f ON f.lane = l.lane AND f.epoch = l.epoch
	WHERE l.relay = $1::text AND (SELECT pg_catalog.count(*) FROM seen) >= 0
	ORDER BY l.lane
	LIMIT (SELECT GREATEST(0, share.lanes - (SELECT pg_catalog.count(*) FROM own)) FROM share)
	FOR UPDATE OF l SKIP LOCKED
), taken AS (
	UPDATE {schema}.relay_lane l
	SET owner = $2::text, xid = pg_catalog.pg_current_xact_id(),
		epoch = GREATEST(l.epoch + 1, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint)
	FROM chosen c WHERE l.relay = $1::text AND l.lane = c.lane
	RETURNING l.*
), forgotten AS MATERIALIZED (
	SELECT l.lane FROM {schema}.relay_lane l JOIN free f ON f.lane = l.lane AND f.epoch = l.epoch
	WHERE l.relay = $1::text AND l.owner = $2::text AND l.lane NOT IN (SELECT c.lane FROM chosen c)
	ORDER BY l.lane
	FOR UPDATE OF l SKIP LOCKED
), freed AS (
	UPDATE {schema}.relay_lane l SET owner = NULL, xid = pg_catalog.pg_current_xact_id(),
		epoch = GREATEST(l.epoch + 1, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint)
	FROM forgotten f WHERE l.relay = $1::text AND l.lane = f.lane
), mine AS (
	SELECT * FROM own UNION ALL SELECT * FROM taken
)
SELECT share.lanes, me.known, (
		SELECT (pg_catalog.date_part('epoch', pg_catalog.min(a.due_at) OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())
			OPERATOR(pg_catalog.*) 1000000)::bigint
		FROM mine CROSS JOIN LATERAL (
			SELECT a.due_at FROM {schema}.aside a
			WHERE a.relay = $1::text AND a.lane = mine.lane AND a.due_at IS NOT NULL
			ORDER BY a.relay, a.lane, a.due_at LIMIT 1
		) a
	), coalesce(l.lane, -1), coalesce(l.epoch, 0), coalesce(l.seen, '1:1:')::text, coalesce(l.floor, 0), coalesce(l.target::text, ''),
	coalesce(l.target_floor, 0), coalesce(l.last, 0), coalesce(l.replay, 0)
FROM share CROSS JOIN me LEFT JOIN mine l ON true
ORDER BY l.lane`

const leasing = "lease"

// Lease implements outbox.RelayStore.
//
// The table of leases does not outlive a crash of the server, nor a failover to a
// replica. Both may lose the last commits and give the numbers of their transactions to
// others, and a position that was read before then would pass those by. So whoever finds
// its lease gone begins again with what is saved.
func (d *Database[Tx]) Lease(ctx context.Context, relay, instance string, lease time.Duration) (outbox.Lease, error) {
	if err := outbox.CheckLease(lease); err != nil {
		return outbox.Lease{}, fmt.Errorf("postgres: lease lanes of relay %.100q: %w", relay, err)
	}
	known, _ := d.registered.Load(relay)
	registered, _ := known.(outbox.Registration)
	owned, found, err := d.lease(ctx, relay, instance, lease, registered)
	if err != nil || found {
		return owned, err
	}
	if err := d.whyNoLease(ctx, relay, registered); err != nil {
		return outbox.Lease{}, err
	}
	// What was missing is there by now.
	owned, found, err = d.lease(ctx, relay, instance, lease, registered)
	if err == nil && !found {
		err = fmt.Errorf("postgres: lease lanes of relay %.100q: %w: its row of table relay changes all the time", relay, idempotency.ErrUnavailable)
	}
	return owned, err
}

// lease finds nothing if leaseSQL has no relay to lease lanes of.
func (d *Database[Tx]) lease(
	ctx context.Context, relay, instance string, lease time.Duration, registered outbox.Registration,
) (owned outbox.Lease, found bool, err error) {
	owned.Due = -1
	isKnown := false
	args := []any{relay, instance, microseconds(lease), int64(registered.Lanes), string(registered.Policy), textsLiteral(registered.Topics)}
	err = d.alone(ctx, leasing, query{d.sql(leaseSQL), args, func(row scanner) error {
		var due *int64
		var l outbox.OwnedLane
		var p positionRow
		if err := row.Scan(append([]any{&owned.Share, &isKnown, &due, &l.Lane, &l.Epoch}, p.dest()...)...); err != nil {
			return err
		}
		found, owned.Due = true, fromNow(due)
		if l.Lane >= 0 {
			l.Position = p.position()
			owned.Lanes = append(owned.Lanes, l)
		}
		return nil
	}})
	if err != nil || !found {
		return outbox.Lease{}, false, err
	}
	if !isKnown {
		d.startFloors(ctx)
	}
	return owned, true, nil
}

// whyNoLease says why there is none. Without an error, what was missing is there.
func (d *Database[Tx]) whyNoLease(ctx context.Context, relay string, registered outbox.Registration) error {
	var home bool
	var recorded outbox.Registration
	err := d.inTransaction(ctx, leasing, func(ctx context.Context, r runner) (err error) {
		if home, err = d.isHome(ctx, r); err != nil || !home {
			return err
		}
		recorded, err = d.registration(ctx, r, relay)
		return err
	})
	switch {
	case err != nil:
		return err
	case !home:
		// Not adopted here: a lease is asked for with little patience.
		return fmt.Errorf("postgres: %s: %w: schema %q: Register adopts it", leasing, outbox.ErrRestored, d.schema)
	case registered.Lanes != 0:
		registered.Retention = recorded.Retention // which is no instance's business
		return refuseOther(registered, recorded)
	}
	return nil
}

// leaveSQL ends a lease, by the index relay_instance_pkey, and frees its lanes, by
// relay_lane_pkey. It locks the relay first, as operators do.
const leaveSQL = `
WITH ended AS (
	DELETE FROM {schema}.relay_instance i WHERE i.relay = $1::text AND i.instance = $2::text
), seen AS (
	UPDATE {schema}.relay r SET seen_at = pg_catalog.clock_timestamp() WHERE r.name = $1::text RETURNING r.name
)
UPDATE {schema}.relay_lane l SET owner = NULL, xid = pg_catalog.pg_current_xact_id()
FROM seen WHERE l.relay = seen.name AND l.relay = $1::text AND l.owner = $2::text`

// Leave implements outbox.RelayStore.
func (d *Database[Tx]) Leave(ctx context.Context, relay, instance string) error {
	return d.alone(ctx, "leave", query{d.sql(leaveSQL), []any{relay, instance}, nil})
}
