package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

// lastRunSQL is when somebody had a lease last, of any relay. Of the relays it reads all, of
// their instances each by the index relay_instance_pkey.
const lastRunSQL = `
	SELECT pg_catalog.max(GREATEST(
		r.seen_at, (SELECT pg_catalog.max(i.lease_until) FROM {schema}.relay_instance i WHERE i.relay = r.name)))
	FROM {schema}.relay r`

// seenSQL notes that somebody is about to run the relay, or runs it, to the minute. A time
// in which no relay at all ran does not count for any: after a standstill, as in an outage of
// the database, or of a log that was restored from an old dump, whoever comes first would
// else delete what the others have yet to publish. Of two at once the second waits for the
// first and finds its rows, yet adds the time to what it read before, as the first did, and
// so it counts once. It locks relays in one order.
const seenSQL = `standstill AS MATERIALIZED (
	SELECT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (` + lastRunSQL + `) AS lasted
), snap AS MATERIALIZED (
	SELECT r.name, r.seen_at FROM {schema}.relay r
), due AS MATERIALIZED (
	SELECT r.name FROM {schema}.relay r CROSS JOIN standstill s
	WHERE s.lasted OPERATOR(pg_catalog.>) interval '1 minute'
	OR r.name = $1::text AND r.seen_at < pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 minute'
	ORDER BY r.name FOR UPDATE OF r
), seen AS (
	UPDATE {schema}.relay r SET seen_at = GREATEST(r.seen_at, CASE
		WHEN r.name = $1::text THEN pg_catalog.clock_timestamp()
		ELSE LEAST(pg_catalog.clock_timestamp(), snap.seen_at OPERATOR(pg_catalog.+) s.lasted) END)
	FROM due, snap, standstill s WHERE r.name = due.name AND snap.name = due.name
	RETURNING r.name
)`

// noteSeenSQL: Register runs it first, so that PruneLog, which may come before the first
// lease, does not take the relay for abandoned.
const noteSeenSQL = `WITH ` + seenSQL + ` SELECT pg_catalog.count(*) FROM seen`

// addRelaySQL creates a relay unless it is there. It waits for another process that
// creates it now.
const addRelaySQL = `
INSERT INTO {schema}.relay (name, lanes, topics, policy, retention)
VALUES ($1::text, $2::integer, $3::text::text[], $4::text, $5::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
ON CONFLICT (name) DO NOTHING`

// addLanesSQL gives a relay its lanes, at the start of the log or behind $3 and $4.
const addLanesSQL = `
INSERT INTO {schema}.relay_lane (relay, lane, seen, floor)
SELECT $1::text, n, $3::text::pg_snapshot, $4::bigint FROM pg_catalog.generate_series(0, $2::integer - 1) AS n`

// readRelaySQL goes by the index relay_pkey. A row for each topic: drivers differ in how they
// read arrays. A relay with none has one row without a place. NULL, which somebody wrote, reads
// as an empty topic: no relay is started with either.
const readRelaySQL = `
SELECT r.lanes, r.policy, (extract(epoch FROM r.retention) OPERATOR(pg_catalog.*) 1000000)::bigint, coalesce(t.topic, ''), t.place IS NOT NULL
FROM {schema}.relay r LEFT JOIN LATERAL pg_catalog.unnest(r.topics) WITH ORDINALITY AS t (topic, place) ON true
WHERE r.name = $1::text
ORDER BY t.place`

// Register implements outbox.RelayStore.
//
// A log that was restored from another cluster is adopted first, which writes all of its
// rows once: see restore.go. The restore must be complete.
func (d *Database[Tx]) Register(ctx context.Context, asked outbox.Registration) error {
	const doing = "register a relay"
	if err := outbox.CheckLanes(asked.Lanes); err != nil {
		return fmt.Errorf("postgres: register relay %.100q: %w", asked.Relay, err)
	}
	if err := d.inTransaction(ctx, doing, d.refuseLog); err != nil {
		return err
	}
	if err := d.adopt(ctx); err != nil {
		return err
	}
	start := outbox.Position{}
	if asked.FromNow {
		floor, err := d.safeFloor(ctx)
		if err != nil {
			return err
		}
		start.Floor = floor
	}
	recorded := asked
	err := d.inTransaction(ctx, doing, func(ctx context.Context, r runner) (err error) {
		if _, err := r.exec(ctx, d.sql(noteSeenSQL), asked.Relay); err != nil {
			return err
		}
		if asked.FromNow {
			if start.Seen, err = currentSnapshot(ctx, r); err != nil {
				return err
			}
		}
		added, err := r.exec(ctx, d.sql(addRelaySQL),
			asked.Relay, int64(asked.Lanes), textsLiteral(asked.Topics), string(asked.Policy), microseconds(asked.Retention))
		if err != nil {
			return err
		}
		if added == 1 {
			_, err = r.exec(ctx, d.sql(addLanesSQL), asked.Relay, int64(asked.Lanes), seenText(start.Seen), start.Floor)
			return err
		}
		recorded, err = d.registration(ctx, r, asked.Relay)
		return err
	})
	if err != nil {
		return err
	}
	if err := refuseOther(asked, recorded); err != nil {
		return err
	}
	d.registered.Store(asked.Relay, asked)
	return nil
}

func (d *Database[Tx]) registration(ctx context.Context, r runner, relay string) (outbox.Registration, error) {
	recorded := outbox.Registration{Relay: relay}
	found := false
	err := r.query(ctx, query{d.sql(readRelaySQL), []any{relay}, func(row scanner) error {
		found = true
		var policy, topic string
		var retention int64
		var isTopic bool
		if err := row.Scan(&recorded.Lanes, &policy, &retention, &topic, &isTopic); err != nil {
			return err
		}
		recorded.Policy, recorded.Retention = outbox.Policy(policy), duration(retention)
		if isTopic {
			recorded.Topics = append(recorded.Topics, topic)
		}
		return nil
	}})
	if err == nil && !found {
		err = fmt.Errorf("%w: %q", outbox.ErrNoRelay, relay)
	}
	return recorded, err
}

func textsLiteral(texts []string) string {
	var literal arrayLiteral
	for _, text := range texts {
		literal.addText(text)
	}
	return literal.String()
}

// refuseOther returns outbox.ErrSettings if a relay is not what it is asked to be.
func refuseOther(asked, recorded outbox.Registration) error {
	if different := differences(asked, recorded); len(different) > 0 {
		return fmt.Errorf("postgres: %w: relay %q: %s", outbox.ErrSettings, asked.Relay, strings.Join(different, "; "))
	}
	return nil
}

// differences names what is asked for and what is recorded. Who has changed the
// latter by SQL need not have sorted the topics.
func differences(asked, recorded outbox.Registration) []string {
	var different []string
	differ := func(name string, asked, recorded any) {
		different = append(different, fmt.Sprintf("%s %v here, %v recorded: start all instances with the latter, "+
			"or stop them all and change it in table relay, as docs/outbox.md shows under Acting", name, asked, recorded))
	}
	if asked.Lanes != recorded.Lanes {
		different = append(different, fmt.Sprintf("Lanes %d here, %d recorded: start all instances with the latter, or stop them all and call Operator.ChangeLanes",
			asked.Lanes, recorded.Lanes))
	}
	if !slices.Equal(sorted(asked.Topics), sorted(recorded.Topics)) {
		differ("Topics", fmt.Sprintf("%q", asked.Topics), fmt.Sprintf("%q", recorded.Topics))
	}
	if asked.Policy != recorded.Policy {
		differ("Policy", asked.Policy, recorded.Policy)
	}
	if asked.Retention.Truncate(time.Microsecond) != recorded.Retention.Truncate(time.Microsecond) {
		differ("Retention", asked.Retention, recorded.Retention)
	}
	return different
}

// sorted is the form that topics are registered in.
func sorted(topics []string) []string { return slices.Compact(slices.Sorted(slices.Values(topics))) }

const snapshotSQL = `SELECT pg_catalog.pg_current_snapshot()::text`

func currentSnapshot(ctx context.Context, r runner) (snapshot string, err error) {
	err = r.query(ctx, query{snapshotSQL, nil, func(row scanner) error { return row.Scan(&snapshot) }})
	return snapshot, err
}
