package postgres

import "context"

// setWaitSQL bounds the waits for locks from here on until the transaction ends,
// and returns the bound before.
const setWaitSQL = `
WITH wait AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS before)
SELECT before, pg_catalog.set_config('lock_timeout', $1::text, true) FROM wait`

func setWait(wait string, before *string) query {
	return query{setWaitSQL, []any{wait}, func(row scanner) error {
		var now string
		return row.Scan(before, &now)
	}}
}

// bounded runs statements in a transaction whose lock_timeout is the user's,
// waits for locks as long as the store may, and leaves lock_timeout as it found
// it: SET LOCAL … TO DEFAULT would undo a SET made when the connection was
// opened. After an error of a statement, what it left undone goes with the
// transaction or the savepoint.
func (d *Database[Tx]) bounded(ctx context.Context, r runner, do func() error) error {
	var before string
	if err := r.query(ctx, setWait(lockTimeout(d.claimWait), &before)); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return r.query(ctx, setWait(before, new(string)))
}
