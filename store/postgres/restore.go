package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// The numbers of transactions in the log and in positions are those of one cluster. In
// another, into which pg_dump's output was loaded, they mean nothing, but which rows a
// position has passed can still be computed: it takes no more than the numbers.
// So adopting a log is giving its rows numbers that are right here:
//
//	lowest      all relays that want the row have passed it: visible in every snapshot
//	lowest + n  this n has a bit for each relay that has yet to publish it
//
// These are so small that no transaction of a running cluster has them. The new
// position of a relay is a snapshot that is taken now, in which transactions whose number has
// its bit are in progress; its next window finds them like those of any transaction that
// ended late.
//
// Rows that were written here already, between the restore and now, are the ones whose
// number is the xmin that PostgreSQL itself keeps of them. Nobody has published those. A number
// from elsewhere can be equal by chance, and is for some rows if both clusters are new.
// But pg_restore comes to outbox_cluster after the log, so that a row that is older
// than what it brought there was brought as well; and of the rows that one COPY has
// written, with one xmin, all but a few have other numbers.
//
// pg_upgrade keeps all numbers, and only makes the cluster another. All that was written last
// by a transaction of its own still is then.
const (
	lowestXactID = 3

	// maxLabelRelays bounds the bits: more than nine would reach numbers in use. With
	// more relays, what one of them has to publish is published by all.
	maxLabelRelays = 9
)

// foreignSQL says what of outbox_cluster is from elsewhere, and whether everything else
// is from here, which makes it a copy of the files. 32 bits of a number are all that xmin has.
const foreignSQL = `
SELECT (SELECT pg_catalog.count(*) FROM {schema}.outbox_cluster),
	coalesce((SELECT pg_catalog.bool_and(c.xmin = c.xid::xid) FROM {schema}.outbox_cluster c), false)
	AND coalesce((SELECT pg_catalog.bool_and(l.xmin = l.xid::xid) FROM {schema}.relay_lane l), false)`

// relabelSQL gives all rows their numbers. It writes the whole log, once.
const relabelSQL = `
UPDATE {schema}.outbox e SET xid = (
	SELECT (coalesce(pg_catalog.bit_or(n.bit), 0) + $2::integer)::text::xid8
	FROM pg_catalog.json_to_recordset($1::text::json) AS n (relay text, bit integer)
	JOIN {schema}.relay r ON r.name = n.relay
	JOIN {schema}.relay_lane l ON l.relay = r.name AND l.lane = e.slot OPERATOR(pg_catalog.%) r.lanes
	WHERE ` + matchesSQL + ` AND (NOT ` + passedSQL + ` OR e.xmin = e.xid::xid
		AND pg_catalog.age(e.xmin) < (
			SELECT pg_catalog.min(pg_catalog.age(c.xmin)) FROM {schema}.outbox_cluster c, pg_catalog.pg_control_system() s
			WHERE c.system_identifier <> s.system_identifier)
		AND e.xmin NOT IN (SELECT o.xmin FROM {schema}.outbox o WHERE o.xmin <> o.xid::xid))
)`

// restartSQL goes by the index relay_lane_pkey.
const restartSQL = `
UPDATE {schema}.relay_lane l SET epoch = l.epoch + 1, owner = NULL, seen = $2::text::pg_snapshot, floor = $3::bigint,
	target = NULL, target_floor = 0, last = 0, replay = 0, xid = pg_catalog.pg_current_xact_id()
WHERE l.relay = $1::text`

const (
	forgetLeasesSQL   = `DELETE FROM {schema}.relay_instance`
	seenAllSQL        = `UPDATE {schema}.relay SET seen_at = pg_catalog.clock_timestamp()` // The dump may be old.
	forgetClustersSQL = `DELETE FROM {schema}.outbox_cluster`
	rememberSQL       = `INSERT INTO {schema}.outbox_cluster (system_identifier) SELECT s.system_identifier FROM pg_catalog.pg_control_system() s`
)

// labelDocument is an element of the first argument of relabelSQL.
type labelDocument struct {
	Relay string `json:"relay"`
	Bit   int    `json:"bit"`
}

// adopt makes a log that was restored from another cluster one of this: what was
// unpublished there is published, and nothing else. It does nothing if it is one. Of several
// processes one works, the others wait for it until ctx ends.
func (d *Database[Tx]) adopt(ctx context.Context) error {
	const doing = "adopt a restored log"
	home := false
	if err := d.alone(ctx, doing, query{d.sql(askHomeSQL), nil, func(row scanner) error { return row.Scan(&home) }}); err != nil || home {
		return err
	}
	floor, err := d.safeFloor(ctx)
	if err != nil {
		return err
	}
	// Without a bound: another process may be at work on a large log.
	err = d.transact(ctx, doing, opening{query: setWait("0", new(string))}, func(ctx context.Context, tx Tx) error {
		if err := d.adoptOnce(ctx, d.transport.on(tx), floor); err != nil {
			return storeError(ctx, doing, err)
		}
		return nil
	})
	if err == nil {
		d.floors.restart()
	}
	return err
}

func (d *Database[Tx]) adoptOnce(ctx context.Context, r runner, floor int64) error {
	if _, err := r.exec(ctx, migrateLockSQL, d.advisoryLock("adopt")); err != nil {
		return err
	}
	if home, err := d.isHome(ctx, r); err != nil || home {
		return err
	}
	// While the transaction has no number: one below the snapshot's end would be
	// visible in it.
	now, err := currentSnapshot(ctx, r)
	if err != nil {
		return err
	}
	clusters, copied := 0, false
	err = r.query(ctx, query{d.sql(foreignSQL), nil, func(row scanner) error { return row.Scan(&clusters, &copied) }})
	switch {
	case err != nil:
		return err
	case clusters == 0:
		return fmt.Errorf("%w: schema %q: table outbox_cluster is empty: wait until the restore is complete", outbox.ErrRestored, d.schema)
	case !copied:
		if err := d.relabel(ctx, r, now, floor); err != nil {
			return err
		}
	}
	for _, statement := range []string{forgetLeasesSQL, seenAllSQL, forgetClustersSQL, rememberSQL} {
		if _, err := r.exec(ctx, d.sql(statement)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Database[Tx]) relabel(ctx context.Context, r runner, now string, floor int64) error {
	var labels []labelDocument
	err := r.query(ctx, query{d.sql(relayNamesSQL), nil, func(row scanner) error {
		var l labelDocument
		err := row.Scan(&l.Relay, new(int64))
		labels = append(labels, l)
		return err
	}})
	if err != nil || len(labels) == 0 {
		return err // A new relay begins with all there is.
	}
	for i := range labels {
		labels[i].Bit = 1
		if len(labels) <= maxLabelRelays {
			labels[i].Bit = 1 << i
		}
	}
	text, err := json.Marshal(labels)
	if err != nil {
		return err
	}
	if _, err := r.exec(ctx, d.sql(relabelSQL), string(text), int64(lowestXactID)); err != nil {
		return err
	}
	for _, l := range labels {
		seen, err := unseen(now, labels, l.Bit)
		if err != nil {
			return err
		}
		if _, err := r.exec(ctx, d.sql(restartSQL), l.Relay, seen, floor); err != nil {
			return err
		}
	}
	return nil
}

// unseen is a snapshot in which the labels with a bit are in progress as well.
func unseen(snapshot string, labels []labelDocument, bit int) (string, error) {
	parts := strings.SplitN(snapshot, ":", 3)
	if len(parts) != 3 {
		return "", fmt.Errorf("%q is no snapshot", snapshot)
	}
	all := 0
	for _, l := range labels {
		all |= l.Bit
	}
	var inProgress []string
	for n := 1; n <= all; n++ {
		if n&bit != 0 {
			inProgress = append(inProgress, strconv.Itoa(lowestXactID+n))
		}
	}
	lowest := inProgress[0]
	if parts[2] != "" {
		inProgress = append(inProgress, parts[2])
	}
	return lowest + ":" + parts[1] + ":" + strings.Join(inProgress, ","), nil
}
