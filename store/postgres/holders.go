package postgres

import (
	"context"
	"time"

	"github.com/onceward/onceward/outbox"
)

// holdersSQL lists open transactions that have a number, in all databases. What
// they run is nobody's business: it may hold secrets. Of other roles' sessions, one without
// pg_read_all_stats sees neither state nor time.
const holdersSQL = `
SELECT a.pid, '', coalesce(a.datname, ''), coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
	(pg_catalog.date_part('epoch', a.xact_start) OPERATOR(pg_catalog.*) 1000000)::bigint AS since
FROM pg_catalog.pg_stat_activity a
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
UNION ALL
SELECT 0, p.gid, p.database, p.owner, '', 'prepared', (pg_catalog.date_part('epoch', p.prepared) OPERATOR(pg_catalog.*) 1000000)::bigint
FROM pg_catalog.pg_prepared_xacts p
ORDER BY since NULLS FIRST`

// Holders implements outbox.OperatorStore.
func (d *Database[Tx]) Holders(ctx context.Context) ([]outbox.Holder, error) {
	var holders []outbox.Holder
	err := d.inTransaction(ctx, "look for open transactions", func(ctx context.Context, r runner) error {
		return r.query(ctx, query{holdersSQL, nil, func(row scanner) error {
			var h outbox.Holder
			var since *int64
			err := row.Scan(&h.PID, &h.GID, &h.Database, &h.User, &h.Application, &h.State, &since)
			if since != nil {
				h.Since = time.UnixMicro(*since).UTC()
			}
			holders = append(holders, h)
			return err
		}})
	})
	if err != nil {
		return nil, err
	}
	return holders, nil
}
