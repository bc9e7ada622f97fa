package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

// abandonedSQL lists relays of which no instance has had a lease for a while, in a
// table with a row for each relay. If none of any relay has one, that time does not count.
const abandonedSQL = `
SELECT r.name FROM {schema}.relay r
WHERE GREATEST(r.seen_at, (SELECT pg_catalog.max(i.lease_until) FROM {schema}.relay_instance i WHERE i.relay = r.name))
	< LEAST(pg_catalog.clock_timestamp(), (` + lastRunSQL + `)) OPERATOR(pg_catalog.-) ($1::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
ORDER BY r.name`

// pruneLogSQL looks at events one after the other and deletes those that are old enough
// and that nobody needs. By parts:
//
//	looked   the next ones, by the index outbox_pkey. Those ahead of the clock, which was
//	         ahead once, do not say that what is behind them is young
//	kept     of those that are old enough: what the lane of some relay has not passed, by all
//	         lanes at once, and what is set aside, by aside_number
//	deleted  the rest, by outbox_pkey
//
// {limit} is a number, for the planner; see readSQL.
const pruneLogSQL = `
WITH looked AS MATERIALIZED (
	SELECT o.number, o.xid, o.slot, o.created_at < (
			SELECT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.max(r.retention) FROM {schema}.relay r
		) AS old, o.created_at > pg_catalog.clock_timestamp() AS ahead
	FROM (SELECT n.number, n.xid, n.slot, n.created_at FROM {schema}.outbox n WHERE n.number > $1::bigint ORDER BY n.number LIMIT {limit}) o
	ORDER BY o.number LIMIT $2::bigint
), kept AS MATERIALIZED (
	SELECT e.number FROM looked e CROSS JOIN {schema}.relay r JOIN {schema}.relay_lane l ON l.relay = r.name AND l.lane = e.slot OPERATOR(pg_catalog.%) r.lanes
	WHERE e.old AND r.name <> ALL ($3::text::text[]) AND NOT ` + passedSQL + `
	UNION ALL
	SELECT a.number FROM looked e JOIN {schema}.aside a ON a.number = e.number WHERE e.old
), deleted AS (
	DELETE FROM {schema}.outbox WHERE number = ANY (ARRAY(
		SELECT e.number FROM looked e WHERE e.old AND e.number NOT IN (SELECT k.number FROM kept k)))
	RETURNING number
)
SELECT pg_catalog.count(*), coalesce(pg_catalog.max(e.number), 0), coalesce(pg_catalog.bool_or(e.old OR e.ahead), false),
	(SELECT pg_catalog.count(*) FROM deleted)
FROM looked e`

// PruneLog implements outbox.RelayStore. Without any relay it deletes nothing.
func (d *Database[Tx]) PruneLog(ctx context.Context, after int64, limit int, abandonAfter time.Duration) (outbox.Pruned, error) {
	if limit <= 0 {
		return outbox.Pruned{}, fmt.Errorf("postgres: PruneLog: the limit is %d: it must be positive", limit)
	}
	pruned := outbox.Pruned{Next: after}
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
		var last int64
		var goesOn bool
		statement := d.sql(strings.NewReplacer("{limit}", planLimit(limit)).Replace(pruneLogSQL))
		err = r.query(ctx, query{statement, []any{after, int64(limit), abandoned.String()}, func(row scanner) error {
			return row.Scan(&pruned.Looked, &last, &goesOn, &pruned.Events)
		}})
		if pruned.Next = 0; goesOn && pruned.Looked == limit {
			pruned.Next = last
		}
		return err
	})
	if err != nil {
		return outbox.Pruned{}, err
	}
	return pruned, nil
}
