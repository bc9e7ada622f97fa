package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

type sqlTransport struct {
	db             *sql.DB
	commitDeadline time.Duration
}

func (s sqlTransport) begin(ctx context.Context, first query) (transaction[*sql.Tx], error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a connection: %w", err)
	}
	// database/sql rolls back when the context of BeginTx ends, and pgx breaks
	// off a commit then. A context of our own ends with ctx until the commit,
	// and with the commit's deadline from then on.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &sqlTransaction{ctx: ctx, cancel: cancel, conn: conn, commitDeadline: s.commitDeadline}
	t.unwatch = context.AfterFunc(ctx, t.sever)
	if err := s.start(own, t, first); err != nil {
		t.end()
		return nil, err
	}
	return t, nil
}

func (s sqlTransport) start(ctx context.Context, t *sqlTransaction, first query) error {
	err := t.conn.Raw(func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			t.setPgx(c.Conn().PgConn())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.tx, err = t.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}); err != nil || first.statement == "" {
		return err
	}
	return s.on(t.tx).query(ctx, first)
}

func (s sqlTransport) on(tx *sql.Tx) runner { return sqlRunner{tx} }

type sqlRunner struct{ tx *sql.Tx }

func (r sqlRunner) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := r.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (r sqlRunner) query(ctx context.Context, q query) error {
	rows, err := r.tx.QueryContext(ctx, q.statement, q.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := q.row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sqlTransaction is one connection of the pool for as long as one Atomic runs.
// The work gets the *sql.Tx itself: database/sql guards it against late use.
type sqlTransaction struct {
	ctx            context.Context //nolint:containedctx // The one of Atomic, in which this lives.
	unwatch        func() bool
	cancel         context.CancelFunc
	conn           *sql.Conn
	tx             *sql.Tx
	commitDeadline time.Duration

	mu sync.Mutex
	// pgx is the connection beneath if the driver is pgx's stdlib. It tells
	// what the server thinks of the transaction without asking it, and can be
	// closed under a statement that does not heed its context.
	pgx     *pgconn.PgConn
	severed bool
	over    bool
}

func (t *sqlTransaction) setPgx(conn *pgconn.PgConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pgx = conn
}

// sever makes database/sql roll back, and sees to it that nothing holds it up.
func (t *sqlTransaction) sever() {
	t.mu.Lock()
	conn := t.pgx
	if t.over {
		conn = nil
	} else {
		t.severed = true
		t.cancel()
		if conn != nil {
			_ = conn.Conn().Close()
		}
	}
	t.mu.Unlock()
	if conn != nil {
		cancelStatement(conn)
	}
}

func (t *sqlTransaction) lend() *sql.Tx { return t.tx }

func (t *sqlTransaction) failure(err error) error {
	if t.ctx.Err() != nil {
		return endedError(t.ctx, err)
	}
	status, closed := t.status()
	// Of another driver the SQLSTATE is all there is.
	failed := status == statusFailed || t.pgx == nil
	return workError(err, failed, closed || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone))
}

// status is what the server last said about the transaction, if it can be known.
func (t *sqlTransaction) status() (status byte, closed bool) {
	_ = t.conn.Raw(func(any) error {
		if t.pgx != nil {
			status, closed = t.pgx.TxStatus(), t.pgx.IsClosed()
		}
		return nil
	})
	return status, closed
}

func (t *sqlTransaction) commit() error {
	status, _ := t.status()
	if !t.unwatch() {
		return endedError(t.ctx, nil)
	}
	switch status {
	case statusIdle:
		return errEnded
	case statusFailed:
		return errSwallowed
	}
	deadline := time.AfterFunc(t.commitDeadline, t.sever)
	defer deadline.Stop()
	switch err := t.tx.Commit(); {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return errSwallowed
	default:
		return commitError(err, pgconn.SafeToRetry(err))
	}
}

func (t *sqlTransaction) end() {
	t.unwatch()
	if t.tx != nil {
		// Without effect after a commit. A statement that a forgotten
		// goroutine runs would hold it up.
		deadline := time.AfterFunc(t.commitDeadline, t.sever)
		_ = t.tx.Rollback()
		deadline.Stop()
	}
	t.mu.Lock()
	t.over = true
	severed := t.severed
	t.mu.Unlock()
	t.cancel()
	if severed {
		// The driver may not have noticed yet, and the pool not at all.
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = t.conn.Close()
}
