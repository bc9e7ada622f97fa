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

// unmovedSQL costs next to nothing: PostgreSQL keeps of the row which transaction wrote it, and
// a dump that is loaded writes it anew. It is false in the right cluster as well if the row
// was written under a savepoint, and homeSQL decides.
const unmovedSQL = `(SELECT pg_catalog.bool_and(c.xmin = c.xid::xid) FROM {schema}.outbox_cluster c)`

const askHomeSQL = `SELECT ` + homeSQL

// lookHomeSQL also returns the row itself if unmovedSQL is true of it, else an empty text. No
// other is the same: a row that a dump brought to another cluster has another system_identifier
// once that cluster has adopted the log.
const lookHomeSQL = askHomeSQL + `, coalesce((
	SELECT pg_catalog.min(pg_catalog.concat(c.system_identifier, ' ', c.xid)) FROM {schema}.outbox_cluster c WHERE c.xmin = c.xid::xid), '')`

func (d *Database[Tx]) isHome(ctx context.Context, r runner) (home bool, err error) {
	err = r.query(ctx, query{d.sql(askHomeSQL), nil, func(row scanner) error { return row.Scan(&home) }})
	return home, err
}

// lookHome returns outbox.ErrRestored like refuseRestored, and notes whether unmovedSQL can tell
// from now on, and of which row; unmoved is empty if it can't. A process that goes on while its
// database is lost, restored elsewhere and found there under the old address must notice.
func (d *Database[Tx]) lookHome(ctx context.Context, r runner) (unmoved string, err error) {
	home := false
	err = r.query(ctx, query{d.sql(lookHomeSQL), nil, func(row scanner) error { return row.Scan(&home, &unmoved) }})
	if err == nil && !home {
		err = d.restoredError()
	}
	if err != nil {
		unmoved = ""
	}
	d.home.Store(unmoved)
	return unmoved, err
}

// refuseRestored returns outbox.ErrRestored if the log was restored from another
// cluster and was not adopted.
func (d *Database[Tx]) refuseRestored(ctx context.Context, r runner) error {
	home, err := d.isHome(ctx, r)
	if err == nil && !home {
		err = d.restoredError()
	}
	return err
}

func (d *Database[Tx]) restoredError() error {
	return fmt.Errorf("postgres: %w: schema %q: run Migrate, or start a relay, when the restore is complete", outbox.ErrRestored, d.schema)
}
