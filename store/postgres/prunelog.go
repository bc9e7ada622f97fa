package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/outbox"
)

// abandonedSQL lists relays of which no instance has had a lease for a while, in a
// table with a row for each relay.
const abandonedSQL = `
SELECT r.name FROM {schema}.relay r
WHERE GREATEST(r.seen_at, (SELECT pg_catalog.max(i.lease_until) FROM {schema}.relay_instance i WHERE i.relay = r.name))
	< pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) ($1::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
ORDER BY r.name`

// pruneLogSQL deletes the oldest events that are old enough and that nobody needs. It
// looks at as many as it may delete, by the index outbox_pkey and past those that
// are set aside, by aside_number: if a relay has not passed the oldest, it finds out at once.
const pruneLogSQL = `
DELETE FROM {schema}.outbox WHERE number = ANY (ARRAY(
	SELECT e.number
	FROM (
		SELECT o.number, o.xid, o.slot, o.created_at FROM {schema}.outbox o
		WHERE NOT EXISTS (SELECT FROM {schema}.aside a WHERE a.number = o.number)
		ORDER BY o.number LIMIT $1::bigint
	) e
	WHERE e.created_at < (SELECT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.max(r.retention) FROM {schema}.relay r)
	AND NOT EXISTS (
		SELECT FROM {schema}.relay r JOIN {schema}.relay_lane l ON l.relay = r.name AND l.lane = e.slot % r.lanes
		WHERE r.name <> ALL ($2::text::text[]) AND NOT ` + passedSQL + `)))`

// PruneLog implements outbox.RelayStore. Without any relay it deletes nothing.
func (d *Database[Tx]) PruneLog(ctx context.Context, limit int, abandonAfter time.Duration) (outbox.Pruned, error) {
	if limit <= 0 {
		return outbox.Pruned{}, fmt.Errorf("postgres: PruneLog: the limit is %d: it must be positive", limit)
	}
	var pruned outbox.Pruned
	err := d.inTransaction(ctx, "prune the log", func(ctx context.Context, r runner) error {
		var alone bool
		err := r.query(ctx, query{pruneLockSQL, []any{d.advisoryLock("prune log")}, func(row scanner) error { return row.Scan(&alone) }})
		if err != nil || !alone {
			return err
		}
		// A restored log is read by positions that mean nothing here.
		if home, err := d.isHome(ctx, r); err != nil || !home {
			return err
		}
		var abandoned arrayLiteral
		err = r.query(ctx, query{d.sql(abandonedSQL), []any{microseconds(abandonAfter)}, func(row scanner) error {
			var name string
			err := row.Scan(&name)
			abandoned.addText(name)
			pruned.Abandoned = append(pruned.Abandoned, name)
			return err
		}})
		if err != nil {
			return err
		}
		deleted, err := r.exec(ctx, d.sql(pruneLogSQL), int64(limit), abandoned.String())
		pruned.Events = int(deleted)
		return err
	})
	if err != nil {
		return outbox.Pruned{}, err
	}
	return pruned, nil
}
