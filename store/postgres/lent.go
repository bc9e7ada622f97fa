package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	if err != nil {
		return nil, err
	}
	return &lentTx{use: l.use, tx: nested, savepoint: true}, nil
}

// Commit releases a savepoint. The transaction itself is not the work's to end.
func (l *lentTx) Commit(ctx context.Context) error {
	return l.finish(func() error { return l.tx.Commit(ctx) })
}

// Rollback rolls back to a savepoint. The transaction itself is not the work's to end.
func (l *lentTx) Rollback(ctx context.Context) error {
	return l.finish(func() error { return l.tx.Rollback(ctx) })
}

func (l *lentTx) finish(do func() error) error {
	if err := l.use.start(); err != nil {
		return err
	}
	defer l.use.stop()
	if !l.savepoint {
		return errBorrowed
	}
	return do()
}

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := l.use.start(); err != nil {
		return 0, err
	}
	defer l.use.stop()
	return l.tx.CopyFrom(ctx, table, columns, source)
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer l.use.stop()
	return l.tx.SendBatch(ctx, b)
}

// LargeObjects of pgx run on the transaction beneath, which is closed with this one.
func (l *lentTx) LargeObjects() pgx.LargeObjects { return l.tx.LargeObjects() }

func (l *lentTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.use.start(); err != nil {
		return nil, err
	}
	defer l.use.stop()
	return l.tx.Prepare(ctx, name, sql)
}

func (l *lentTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.use.start(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer l.use.stop()
	tag, err := l.tx.Exec(ctx, sql, args...)
	l.use.ended = restarts(tag, sql)
	return tag, err
}

// restarts reports that a statement, or the last of several, has ended the
// transaction or begun one, as COMMIT AND CHAIN does both.
func restarts(tag pgconn.CommandTag, sql string) bool {
	switch tag.String() {
	case "COMMIT", "BEGIN", "START TRANSACTION":
		return true
	case "ROLLBACK": // TO a savepoint has the same tag
		return !slices.Contains(strings.Fields(strings.ToUpper(sql)), "TO")
	}
	return false
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query() //nolint:sqlclosecheck // The caller closes them.
	}
	defer l.use.stop()
	return l.tx.Query(ctx, sql, args...) //nolint:sqlclosecheck // The caller closes them.
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.use.start(); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	defer l.use.stop()
	return l.tx.QueryRow(ctx, sql, args...)
}

// Conn returns the connection while the work runs, and nil afterwards.
func (l *lentTx) Conn() *pgx.Conn {
	if l.use.state.Load() == useRevoked {
		return nil
	}
	return l.tx.Conn()
}
