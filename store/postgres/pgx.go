package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// isolation is said in every BEGIN: the server's or the role's default may be
// another level, in which a claim cannot wait for the one before it.
const isolation = pgx.ReadCommitted

// PgConn.TxStatus values.
const (
	statusIdle   = 'I'
	statusFailed = 'E'
)

type pgxTransport struct {
	pool                      *pgxpool.Pool
	claimWait, commitDeadline time.Duration
	// describes: the pool runs in QueryExecModeDescribeExec, in which a
	// statement is parsed in one round trip and run in the next. Behind a
	// PgBouncer, outside of a transaction, those may reach two servers, and
	// the second runs whatever another client has parsed there.
	describes bool
}

func newPgxTransport(pool *pgxpool.Pool, s settings) *pgxTransport {
	mode := pool.Config().ConnConfig.DefaultQueryExecMode
	return &pgxTransport{pool, s.claimWait, s.commitDeadline, mode == pgx.QueryExecModeDescribeExec}
}

func (p *pgxTransport) begin(ctx context.Context, first opening) (transaction[pgx.Tx], error) {
	if first.bounded == nil {
		return p.try(ctx, first.query, 0)
	}
	t, err := p.try(ctx, first.query, p.claimWait)
	if errors.Is(err, errHurried) || stateOf(err) == stateCancelled {
		return p.try(ctx, first.bounded(), 0)
	}
	return t, err
}

// try begins a transaction on one connection. If patience is positive and first
// takes longer, the error is errHurried.
func (p *pgxTransport) try(ctx context.Context, first query, patience time.Duration) (transaction[pgx.Tx], error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a connection: %w", err)
	}
	t := &pgxTransaction{
		ctx: ctx, lasting: context.WithoutCancel(ctx), began: time.Now(),
		pool: p.pool, conn: conn, raw: conn.Conn(), commitDeadline: p.commitDeadline,
	}
	// From here on the end of ctx closes the connection, whatever it waits
	// for. The store's own statements need no watch on ctx of their own.
	t.unwatch = context.AfterFunc(ctx, t.sever)
	if patience > 0 {
		t.hurryAfter(patience)
	}
	err = p.start(t.lasting, t, first) //nolint:contextcheck // See above.
	if t.hasBegun() {
		err = errHurried
	}
	if err != nil {
		t.end() //nolint:contextcheck // ctx may have ended, which is why it is cleaned up.
		return nil, err
	}
	t.lent.tx, t.lent.use, t.use.conn = t.tx, &t.use, t.raw.PgConn()
	return t, nil
}

// start sends BEGIN and the first statement in one round trip.
func (p *pgxTransport) start(ctx context.Context, t *pgxTransaction, first query) (err error) {
	if first.statement == "" || p.describes {
		if t.tx, err = t.raw.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation}); err != nil || first.statement == "" {
			return err
		}
		return p.on(t.tx).query(ctx, first)
	}
	t.batch.QueuedQueries = make([]*pgx.QueuedQuery, 0, 2)
	t.batch.BeginTx(pgx.TxOptions{IsoLevel: isolation})
	t.batch.Queue(first.statement, first.args...)
	results := t.raw.SendBatch(ctx, &t.batch)
	t.tx = results.Tx()
	_, err = results.Exec()
	if err == nil {
		rows, _ := results.Query()
		err = eachRow(rows, first.row)
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	return err
}

func (p *pgxTransport) on(tx pgx.Tx) runner { return pgxRunner{tx, p.describes} }

type pgxRunner struct {
	tx        pgx.Tx
	describes bool
}

func (r pgxRunner) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := r.tx.Exec(ctx, statement, r.inMode(args)...)
	return tag.RowsAffected(), err
}

func (r pgxRunner) query(ctx context.Context, q query) error {
	rows, _ := r.tx.Query(ctx, q.statement, r.inMode(q.args)...)
	return eachRow(rows, q.row)
}

// inMode saves the round trip of a describe that says nothing new: the
// statements here name the types of their arguments.
func (r pgxRunner) inMode(args []any) []any {
	if r.describes && len(args) > 0 {
		return append([]any{pgx.QueryExecModeExec}, args...)
	}
	return args
}

func eachRow(rows pgx.Rows, row func(scanner) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// pgxTransaction is one connection of the pool for as long as one Atomic runs.
type pgxTransaction struct {
	ctx            context.Context //nolint:containedctx // The one of Atomic, in which this lives.
	lasting        context.Context //nolint:containedctx // The same without its end.
	began          time.Time
	unwatch        func() bool
	pool           *pgxpool.Pool
	raw            *pgx.Conn
	batch          pgx.Batch
	tx             pgx.Tx
	lent           lentTx
	use            use
	commitDeadline time.Duration

	mu sync.Mutex
	// conn is nil once the connection was given back or taken from the pool.
	conn    *pgxpool.Conn
	severed bool
	// begun: the server has answered the first statement. hurried: it was
	// asked to make haste before, by patience.
	begun, hurried bool
	patience       *time.Timer
}

var errHurried = errors.New("postgres: the first statement took longer than the claim wait")

// hurryPause lies between two requests to make haste.
const hurryPause = time.Second

func (t *pgxTransaction) hurryAfter(patience time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.patience = time.AfterFunc(patience, t.hurry)
}

// hurry asks the server to cancel the first statement, again and again until it
// answers: a request that gets there before the statement has no effect.
func (t *pgxTransaction) hurry() {
	if !t.hurrying() {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), hurryPause)
	defer stop()
	_ = t.raw.PgConn().CancelRequest(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun {
		t.patience.Reset(hurryPause)
	}
}

func (t *pgxTransaction) hurrying() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun || t.severed {
		return false
	}
	t.hurried = true
	return true
}

// hasBegun is called when the first statement has its answer, and reports whether
// it was hurried. Whatever the answer, such a connection is not used again: a
// request may still be on its way, and could hit another statement.
func (t *pgxTransaction) hasBegun() (hurried bool) {
	t.mu.Lock()
	t.begun = true
	if t.patience != nil {
		t.patience.Stop()
	}
	hurried = t.hurried
	t.mu.Unlock()
	if hurried {
		t.sever()
	}
	return hurried
}

// sever closes the socket under whatever the work is doing, so that the server
// rolls back even if the work never returns. The connection leaves the pool,
// which may open another in its place at once. Nothing else of it needs closing.
func (t *pgxTransaction) sever() {
	t.mu.Lock()
	// Asked before the socket closes: the statement fails at once then. Nothing but
	// such a request bounds a claim that waits for another's.
	running := !t.begun || t.use.busy()
	if t.conn == nil {
		running = false
	} else {
		t.severed = true
		_ = t.raw.PgConn().Conn().Close()
		t.conn.Hijack()
		t.conn = nil
	}
	t.mu.Unlock()
	if running {
		cancelStatement(t.raw.PgConn())
	}
}

// cancelStatement stops what the server still runs for a client whose socket is
// closed: a server that computes or sleeps does not look at the socket. pgx asks
// for it once, at once, and a statement that is on its way at that moment gets
// there after the request. Cancel requests carry the connection's secret, so
// that they cannot hit anybody else.
func cancelStatement(conn *pgconn.PgConn) {
	for _, pause := range []time.Duration{100 * time.Millisecond, time.Second} {
		<-time.After(pause)
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		_ = conn.CancelRequest(ctx)
		stop()
	}
}

func (t *pgxTransaction) lend() pgx.Tx { return &t.lent }

func (t *pgxTransaction) failure(err error) error {
	if t.use.revoke() {
		// Nothing of the connection may be looked at while another
		// goroutine uses it.
		t.sever()
		if t.ctx.Err() != nil {
			return endedError(t.ctx, err)
		}
		return fmt.Errorf("%w: %w", errStillUsed, err)
	}
	switch {
	case t.endedByWork():
		return workEnded(err)
	case t.ctx.Err() != nil:
		return endedError(t.ctx, err)
	}
	if cause := t.lostByWork(err); cause != nil {
		return lostByWork(cause, err)
	}
	return workError(err, t.raw.PgConn().TxStatus() == statusFailed, t.raw.IsClosed())
}

// lostByWork says how the work has lost the connection, or nil if it has not. A
// statement that was watched tells: a connection cut without an ended context is
// the network's doing or the server's. Only for statements on the connection
// beneath, which nobody watched, the server is asked.
func (t *pgxTransaction) lostByWork(err error) error {
	if !t.raw.IsClosed() {
		return nil
	}
	switch l := t.use.loss.Load(); {
	case l != nil && l.own:
		return l.cause
	case l != nil, !t.use.beneath.Load(), isOutage(stateOf(err)):
		return nil
	}
	t.sever() // Gives its place in the pool to the question.
	if outlived(t.ctx, t.began, func(ctx context.Context, seconds *float64) error {
		return t.pool.QueryRow(ctx, uptimeSQL, pgx.QueryExecModeSimpleProtocol).Scan(seconds)
	}) {
		return errLostUnseen
	}
	return nil
}

// endedByWork: what the server said last stands, also when ctx has ended since
// and the connection was closed.
func (t *pgxTransaction) endedByWork() bool {
	return t.use.ended || t.raw.PgConn().TxStatus() == statusIdle
}

func (t *pgxTransaction) commit() error {
	inUse, watched := t.use.revoke(), t.unwatch()
	pg := t.raw.PgConn()
	switch {
	case inUse && watched:
		t.sever()
		return errStillUsed
	case !inUse && t.endedByWork():
		return errEnded
	case !watched:
		return endedError(t.ctx, nil)
	case pg.IsClosed():
		if cause := t.lostByWork(nil); cause != nil {
			return cause
		}
		return errLost
	case pg.IsBusy():
		t.sever()
		return errRowsOpen
	case pg.TxStatus() == statusFailed:
		return errSwallowed
	case t.use.rolledBack:
		return errRolledBack
	}
	// A commit that has begun is not called off: its outcome would be unknown.
	switch err := t.finish(t.tx.Commit); {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return errSwallowed
	default:
		return commitError(err, pgconn.SafeToRetry(err), t.raw.IsClosed())
	}
}

// finish commits or rolls back within the deadline. It stands on the socket: a
// context that ends would have pgx allocate a watch for each transaction.
func (t *pgxTransaction) finish(do func(context.Context) error) error {
	socket := t.raw.PgConn().Conn()
	_ = socket.SetDeadline(time.Now().Add(t.commitDeadline))
	err := do(t.lasting)
	if !t.raw.IsClosed() { // What pgx then waits for has a deadline of its own.
		_ = socket.SetDeadline(time.Time{})
	}
	return err
}

func (t *pgxTransaction) end() {
	if t.use.revoke() {
		t.sever()
	}
	t.unwatch()
	pg := t.raw.PgConn()
	if t.tx != nil && !t.isSevered() && !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() != statusIdle {
		// If it fails the connection is closed, which rolls back as well.
		_ = t.finish(t.tx.Rollback)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		// The pool closes connections that are busy or not idle.
		t.conn.Release()
		t.conn = nil
	}
}

func (t *pgxTransaction) isSevered() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.severed
}
