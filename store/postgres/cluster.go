package postgres

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// homeSQL is true if the log was written in the cluster that it is in: the numbers of
// transactions in it mean nothing in another.
const homeSQL = `(SELECT coalesce(pg_catalog.bool_and(c.system_identifier = s.system_identifier), false)
	FROM {schema}.outbox_cluster c CROSS JOIN pg_catalog.pg_control_system() s)`

const askHomeSQL = `SELECT ` + homeSQL

func (d *Database[Tx]) isHome(ctx context.Context, r runner) (home bool, err error) {
	err = r.query(ctx, query{d.sql(askHomeSQL), nil, func(row scanner) error { return row.Scan(&home) }})
	return home, err
}

// refuseRestored returns outbox.ErrRestored if the log was restored from another
// cluster and was not adopted.
func (d *Database[Tx]) refuseRestored(ctx context.Context, r runner) error {
	home, err := d.isHome(ctx, r)
	if err == nil && !home {
		err = fmt.Errorf("postgres: %w: schema %q: run Migrate, or start a relay, when the restore is complete", outbox.ErrRestored, d.schema)
	}
	return err
}
