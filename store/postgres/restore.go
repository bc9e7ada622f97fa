package postgres

import "context"

func (d *Database[Tx]) adopt(ctx context.Context) error {
	return d.inTransaction(ctx, "look where the log comes from", d.refuseRestored)
}
