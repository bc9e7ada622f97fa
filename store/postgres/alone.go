package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// alone runs one statement as a transaction of its own: what a relay does all the
// time is one round trip. Its locks are held for as long as it runs. Errors are
// sentinels.
func (d *Database[Tx]) alone(ctx context.Context, doing string, q query) error {
	if d.invalid != nil {
		return d.invalid
	}
	if err := d.transport.alone(ctx, q); err != nil {
		return storeError(ctx, doing, err)
	}
	return nil
}

func (p *pgxTransport) alone(ctx context.Context, q query) error {
	args := q.args
	if p.describes {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	rows, _ := p.pool.Query(ctx, q.statement, args...)
	return eachRow(rows, q.row)
}

// alone begins a transaction for drivers that it does not know: lib/pq parses a
// statement in one round trip and runs it in the next, which behind a PgBouncer may
// reach two servers, as in pgx's describe_exec mode (see pgxTransport).
func (s sqlTransport) alone(ctx context.Context, q query) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("acquire a connection: %w", err)
	}
	defer func() { _ = conn.Close() }()
	known, args := false, q.args
	err = conn.Raw(func(driverConn any) error {
		var c *stdlib.Conn
		if c, known = driverConn.(*stdlib.Conn); known && c.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeDescribeExec {
			args = append([]any{pgx.QueryExecModeExec}, args...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if known {
		rows, err := conn.QueryContext(ctx, q.statement, args...)
		if err != nil {
			return err
		}
		return eachSQLRow(rows, q.row)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Without effect after a commit.
	if err := s.on(tx).query(ctx, q); err != nil {
		return err
	}
	return tx.Commit()
}
