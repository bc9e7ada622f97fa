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

func (s sqlTransport) begin(ctx context.Context, first opening) (transaction[*sql.Tx], error) {
	t, err := s.try(ctx, first.query)
	if first.bounded != nil && stateOf(err) == stateCancelled {
		return s.try(ctx, first.bounded())
	}
	return t, err
}

// try begins a transaction on one connection.
func (s sqlTransport) try(ctx context.Context, first query) (transaction[*sql.Tx], error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a connection: %w", err)
	}
	// database/sql rolls back when the context of BeginTx ends, without a word
	// about what became of the transaction, and pgx breaks off a commit then.
	// So this one is our own, and sever does what the end of ctx asks for.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &sqlTransaction{ctx: ctx, began: time.Now(), cancel: cancel, db: s.db, conn: conn, commitDeadline: s.commitDeadline}
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
	return eachSQLRow(rows, q.row)
}

func eachSQLRow(rows *sql.Rows, row func(scanner) error) error {
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sqlTransaction is one connection of the pool for as long as one Atomic runs.
// The work gets the *sql.Tx itself: database/sql guards it against late use.
type sqlTransaction struct {
	ctx            context.Context //nolint:containedctx // The one of Atomic, in which this lives.
	began          time.Time
	unwatch        func() bool
	cancel         context.CancelFunc
	db             *sql.DB
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

// sever makes the server roll back, and sees to it that nothing holds it up:
// with pgx by closing the socket, otherwise by having database/sql roll back.
// Not both, since a transaction that database/sql has rolled back looks like one
// that the work has ended.
func (t *sqlTransaction) sever() {
	t.mu.Lock()
	conn := t.pgx
	switch {
	case t.over:
		conn = nil
	case conn != nil:
		t.severed = true
		_ = conn.Conn().Close()
	default:
		t.severed = true
		t.cancel()
	}
	t.mu.Unlock()
	if conn != nil {
		cancelStatement(conn)
	}
}

func (t *sqlTransaction) lend() *sql.Tx { return t.tx }

func (t *sqlTransaction) failure(err error) error {
	status, closed, stuck := t.status()
	watched := t.unwatch()
	done := errors.Is(t.rollback(), sql.ErrTxDone)
	switch {
	case status == statusIdle, done && (watched || t.pgx != nil):
		return workEnded(err)
	case !watched:
		return endedError(t.ctx, err)
	case stuck:
		return fmt.Errorf("%w: %w", errStillUsed, err)
	}
	lost := closed || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
	if lost && !isOutage(stateOf(err)) && t.lostByWork() {
		return lostByWork(errLostUnseen, err)
	}
	// Of another driver the SQLSTATE is all there is.
	return workError(err, status == statusFailed || t.pgx == nil, lost)
}

// lostByWork reports that the server is well, from which the connection was
// lost. Nobody sees the statements of a *sql.Tx and their contexts, and a message
// that costs its connection each time must not pass for an outage for ever. A
// connection that the network cut counts as the work's as well, if the server
// can be reached at once.
func (t *sqlTransaction) lostByWork() bool {
	t.close() // Gives its place in the pool to the question.
	return outlived(t.ctx, t.began, func(ctx context.Context, seconds *float64) error {
		return t.db.QueryRowContext(ctx, uptimeSQL).Scan(seconds)
	})
}

// returnPatience bounds how long a statement may still run, in a goroutine of the
// work's, when the work has returned.
const returnPatience = time.Second

// status is what the server last said about the transaction, if it can be known.
// It waits for a statement that runs still, and ends it after a while (stuck).
func (t *sqlTransaction) status() (status byte, closed, stuck bool) {
	patience := time.AfterFunc(min(returnPatience, t.commitDeadline), t.sever)
	_ = t.conn.Raw(func(any) error {
		if t.pgx != nil {
			status, closed = t.pgx.TxStatus(), t.pgx.IsClosed()
		}
		return nil
	})
	return status, closed, !patience.Stop()
}

func (t *sqlTransaction) commit() error {
	status, closed, stuck := t.status()
	if !t.unwatch() {
		return t.failure(nil)
	}
	switch {
	case status == statusIdle:
		return errEnded
	case stuck:
		return errStillUsed
	case closed:
		_ = t.rollback()
		if t.lostByWork() {
			return errLostUnseen
		}
		return errLost
	case status == statusFailed:
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
		return commitError(err, pgconn.SafeToRetry(err), t.pgx == nil || t.pgx.IsClosed())
	}
}

// rollback fails with sql.ErrTxDone if the transaction has ended.
func (t *sqlTransaction) rollback() error {
	// A statement that a forgotten goroutine runs would hold it up.
	deadline := time.AfterFunc(t.commitDeadline, t.sever)
	defer deadline.Stop()
	return t.tx.Rollback()
}

func (t *sqlTransaction) end() {
	t.unwatch()
	if t.tx != nil {
		_ = t.rollback() // Without effect after a commit.
	}
	t.close()
}

// close gives the connection back, once the transaction is over.
func (t *sqlTransaction) close() {
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
