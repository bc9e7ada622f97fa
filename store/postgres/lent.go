package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lentTx is the transaction the work sees. It ends when the work returns, not
// by the work's hand; a copy that outlives the work, in a goroutine it forgot,
// cannot touch the connection, on which another message's transaction may run.
type lentTx struct {
	use       *use
	tx        pgx.Tx
	savepoint bool
}

var _ pgx.Tx = (*lentTx)(nil)

// use says who may touch the connection now.
type use struct {
	state atomic.Int32
	conn  *pgconn.PgConn
	// ended: the work has ended the transaction and begun another one, which
	// looks the same from outside and holds no claim.
	ended bool
	// committed and rolledBack: the work called Commit or, before that, Rollback.
	committed, rolledBack bool
	// beneath: the work has the connection, on which nobody watches its statements.
	beneath atomic.Bool
	loss    atomic.Pointer[loss]
}

// loss is how a statement of the work lost the connection.
type loss struct {
	cause error
	// own: by the work's own doing. Otherwise the network or the server did it.
	own bool
}

const (
	useFree int32 = iota
	useBusy
	useRevoked
)

var errInUse = errors.New("postgres: the transaction is in use: it runs one statement at a time")

func (u *use) start() error {
	switch {
	case u.state.CompareAndSwap(useFree, useBusy):
		if u.ended || u.conn.TxStatus() == statusIdle {
			u.stop()
			return errEnded // before a BEGIN of the work's own hides it
		}
		return nil
	case u.state.Load() == useRevoked:
		return pgx.ErrTxClosed
	}
	return errInUse
}

// note looks at what a statement came to, at once: later on its context has
// ended in any case. pgx closes the connection when the context of a statement
// ends before its answer has come.
func (u *use) note(ctx context.Context, err error) {
	if err == nil || !u.conn.IsClosed() {
		return
	}
	l := &loss{cause: fmt.Errorf("postgres: a statement of the work cost the connection: %w", err)}
	switch state := stateOf(err); {
	case state != "":
		l.own = !isOutage(state) && !isConflict(state) && !isConnectionState(state)
	case ctx.Err() != nil:
		l.own = true
		l.cause = fmt.Errorf("postgres: the work's own context ended in a statement, which cost the connection: %w", ctx.Err())
	}
	u.loss.CompareAndSwap(nil, l)
}

func (u *use) stop() { u.state.CompareAndSwap(useBusy, useFree) }

func (u *use) busy() bool { return u.state.Load() == useBusy }

// revoke ends all use, and reports whether somebody was at it.
func (u *use) revoke() (wasBusy bool) { return u.state.Swap(useRevoked) == useBusy }

// Begin sets a savepoint.
func (l *lentTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := l.use.start(); err != nil {
		return nil, err
	}
	defer l.use.stop()
	nested, err := l.tx.Begin(ctx)
	l.use.note(ctx, err)
	if err != nil {
		return nil, err
	}
	return &lentTx{use: l.use, tx: nested, savepoint: true}, nil
}

// Commit releases a savepoint. The transaction itself is not the work's to end.
func (l *lentTx) Commit(ctx context.Context) error {
	return l.finish(ctx, l.tx.Commit, &l.use.committed)
}

// Rollback rolls back to a savepoint. The transaction itself is not the work's to
// end; but it will not be committed, whatever the work returns. After a Commit it
// means nothing, as a deferred one does in pgx.
func (l *lentTx) Rollback(ctx context.Context) error {
	return l.finish(ctx, l.tx.Rollback, &l.use.rolledBack)
}

func (l *lentTx) finish(ctx context.Context, do func(context.Context) error, called *bool) error {
	if err := l.use.start(); err != nil {
		return err
	}
	defer l.use.stop()
	if !l.savepoint {
		if !l.use.committed {
			*called = true
		}
		return errBorrowed
	}
	err := do(ctx)
	l.use.note(ctx, err)
	return err
}

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := l.use.start(); err != nil {
		return 0, err
	}
	defer l.use.stop()
	n, err := l.tx.CopyFrom(ctx, table, columns, source)
	l.use.note(ctx, err)
	return n, err
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer l.use.stop()
	for _, q := range b.QueuedQueries {
		l.use.ended = l.use.ended || endsTransaction(q.SQL)
	}
	return &lentResults{l.tx.SendBatch(ctx, b), ctx, l.use}
}

// LargeObjects of pgx run on the transaction beneath, which is closed with this one.
func (l *lentTx) LargeObjects() pgx.LargeObjects {
	l.use.beneath.Store(true)
	return l.tx.LargeObjects()
}

func (l *lentTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.use.start(); err != nil {
		return nil, err
	}
	defer l.use.stop()
	statement, err := l.tx.Prepare(ctx, name, sql)
	l.use.note(ctx, err)
	return statement, err
}

func (l *lentTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.use.start(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer l.use.stop()
	tag, err := l.tx.Exec(ctx, sql, args...)
	l.use.note(ctx, err)
	l.use.ended = restarts(tag, sql)
	return tag, err
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query() //nolint:sqlclosecheck // The caller closes them.
	}
	defer l.use.stop()
	l.use.ended = endsTransaction(sql)
	rows, err := l.tx.Query(ctx, sql, args...)
	l.use.note(ctx, err)
	return &lentRows{rows, ctx, l.use}, err
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	defer l.use.stop()
	l.use.ended = endsTransaction(sql)
	return &lentRow{l.tx.QueryRow(ctx, sql, args...), ctx, l.use}
}

// Conn returns the connection while the work runs, and nil afterwards.
func (l *lentTx) Conn() *pgx.Conn {
	if l.use.state.Load() == useRevoked {
		return nil
	}
	l.use.beneath.Store(true)
	return l.tx.Conn()
}
