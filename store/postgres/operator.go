package postgres

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// lockRelaySQL keeps others from changing a relay, and new instances from being
// counted out: by the index relay_pkey.
const lockRelaySQL = `SELECT r.lanes, r.policy FROM {schema}.relay r WHERE r.name = $1::text FOR UPDATE`

// lockLanesSQL waits for positions that are being saved, by the index relay_lane_pkey,
// and keeps lanes from being taken.
const lockLanesSQL = `SELECT l.lane FROM {schema}.relay_lane l WHERE l.relay = $1::text ORDER BY l.lane FOR UPDATE`

// handOverSQL tells the owners of lanes that something has changed, by taking the lanes
// from them.
const handOverSQL = `
UPDATE {schema}.relay_lane l SET epoch = l.epoch + 1, owner = NULL, xid = pg_catalog.pg_current_xact_id()
WHERE l.relay = $1::text AND l.lane = ANY ($2::text::integer[])`

// lockedRelay is a relay that nobody else changes now, in a transaction.
type lockedRelay struct {
	runner

	name   string
	lanes  int
	policy outbox.Policy
}

// onRelay runs an operator's change in a transaction. Everything that changes a lane
// has locked it before it reads anything of it.
func (d *Database[Tx]) onRelay(ctx context.Context, doing, relay string, change func(ctx context.Context, r lockedRelay) error) error {
	return d.inTransaction(ctx, doing, func(ctx context.Context, r runner) error {
		if err := d.refuseRestored(ctx, r); err != nil {
			return err
		}
		locked := lockedRelay{runner: r, name: relay}
		err := r.query(ctx, query{d.sql(lockRelaySQL), []any{relay}, func(row scanner) error {
			var policy string
			err := row.Scan(&locked.lanes, &policy)
			locked.policy = outbox.Policy(policy)
			return err
		}})
		if err == nil && locked.lanes == 0 {
			err = fmt.Errorf("%w: %q", outbox.ErrNoRelay, relay)
		}
		if err != nil {
			return err
		}
		err = r.query(ctx, query{d.sql(lockLanesSQL), []any{relay}, func(row scanner) error { return row.Scan(new(int)) }})
		if err != nil {
			return err
		}
		return change(ctx, locked)
	})
}

func (d *Database[Tx]) handOver(ctx context.Context, r lockedRelay, lanes map[int]struct{}) error {
	var literal arrayLiteral
	for lane := range lanes {
		literal.addInt(int64(lane))
	}
	_, err := r.exec(ctx, d.sql(handOverSQL), r.name, literal.String())
	return err
}

const runningSQL = `
SELECT EXISTS (SELECT FROM {schema}.relay_instance i WHERE i.relay = $1::text AND i.lease_until > pg_catalog.clock_timestamp())`

func (d *Database[Tx]) refuseRunning(ctx context.Context, r lockedRelay) error {
	var running bool
	err := r.query(ctx, query{d.sql(runningSQL), []any{r.name}, func(row scanner) error { return row.Scan(&running) }})
	if err == nil && running {
		err = fmt.Errorf("%w: %q: stop all its instances", outbox.ErrRunning, r.name)
	}
	return err
}

// Of a relay that is removed.
const (
	removeLanesSQL     = `DELETE FROM {schema}.relay_lane WHERE relay = $1::text`
	removeInstancesSQL = `DELETE FROM {schema}.relay_instance WHERE relay = $1::text`
	removeAsidesSQL    = `DELETE FROM {schema}.aside WHERE relay = $1::text`
	removeRelaySQL     = `DELETE FROM {schema}.relay WHERE name = $1::text`
)

// Remove implements outbox.OperatorStore.
func (d *Database[Tx]) Remove(ctx context.Context, relay string) error {
	return d.onRelay(ctx, "remove a relay", relay, func(ctx context.Context, r lockedRelay) error {
		if err := d.refuseRunning(ctx, r); err != nil {
			return err
		}
		for _, statement := range []string{removeLanesSQL, removeInstancesSQL, removeAsidesSQL, removeRelaySQL} {
			if _, err := r.exec(ctx, d.sql(statement), relay); err != nil {
				return err
			}
		}
		return nil
	})
}
