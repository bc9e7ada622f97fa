package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// transact runs work in a write transaction and commits it if work returns nil.
// Errors of work come back as they are; those of the transaction are classified.
func (s *Store) transact(ctx context.Context, work func(ctx context.Context, tx *sql.Tx) error) error {
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	// That a panic or runtime.Goexit leaves this function waits for the
	// rollback, so that the claim is free then.
	defer func() { _ = t.rollback() }()
	unwatch := context.AfterFunc(ctx, func() { _ = t.rollback() })
	defer unwatch()

	if err := work(ctx, t.tx); err != nil {
		return workFailed(ctx, err, t.rollback())
	}
	idle := t.isIdle()
	switch {
	case !unwatch():
		return contextEnded(ctx, t.rollback())
	case !idle:
		return errStillUsed
	case t.guarded.ended.Load():
		return fmt.Errorf("sqlite: commit: %w", idempotency.ErrTransactionEnded)
	}
	if err := t.tx.Commit(); err != nil {
		return commitFailed(err)
	}
	return nil
}

// read runs look in a transaction that sees one state of the file, beside the
// writers. Errors of look come back as they are.
func (s *Store) read(ctx context.Context, look func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return failed("begin to read", err)
	}
	defer func() { _ = tx.Rollback() }() // There is nothing to commit.
	return look(tx)
}

// returnPatience bounds how long a statement may still run, in a goroutine of the
// work's, when the work has returned.
const returnPatience = time.Second

var errStillUsed = errors.New("sqlite: rolled back: the work returned while one of its goroutines still used the transaction: wait for it " +
	"(the claim is free, and others can write, when its statement has ended)")

// transaction is the writer's connection for as long as one call needs it.
type transaction struct {
	tx      *sql.Tx
	conn    *sql.Conn
	guarded *guarded
	// rollback gives back the connection as well, and goes without effect on
	// what was committed. Whoever is first sees whether work had ended the
	// transaction before.
	rollback func() error
}

// isIdle waits for a statement that still runs, but not for long. The driver
// offers no way to interrupt one whose context lives.
func (t *transaction) isIdle() bool {
	free := make(chan error, 1)
	go func() { free <- t.conn.Raw(func(any) error { return nil }) }() // Ends with the statement.
	ok, _ := await(free)
	return ok
}

// end rolls back and gives back the connection, when a statement that still runs
// has ended. It does not wait for one for long.
func (t *transaction) end(release func()) error {
	done := make(chan error, 1)
	go func() { // Ends with the statement.
		ended := t.guarded.ended.Load()
		err := t.tx.Rollback()
		if err == nil && ended {
			err = sql.ErrTxDone // It was another one, begun by the work.
		}
		release()
		done <- err
	}()
	if ok, err := await(done); ok {
		return err
	}
	return errStillUsed
}

// await returns ok if there was a result in time.
func await(result <-chan error) (ok bool, err error) {
	patience := time.NewTimer(returnPatience)
	defer patience.Stop()
	select {
	case err := <-result:
		return true, err
	case <-patience.C:
		return false, nil
	}
}

// begin takes the write lock. The wait for it, first for this process's
// connection and then for other processes, ends with ctx or the claim wait. The
// transaction lives until it is rolled back: ctx would have database/sql roll it
// back without a word about what became of it.
func (s *Store) begin(ctx context.Context) (*transaction, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, cancel)
	patience := time.AfterFunc(s.claimWait, cancel)
	t := &transaction{}
	var err error
	if t.conn, err = s.writer.Conn(own); err == nil {
		t.tx, err = t.conn.BeginTx(own, nil)
	}
	late := !patience.Stop()
	ended := !unwatch()
	switch {
	case ended:
		err = failed("begin", ctx.Err())
	case late, err != nil && isBusy(err):
		err = fmt.Errorf("sqlite: begin: %w: waited %v for the write lock", idempotency.ErrInProgress, s.claimWait)
	case err != nil:
		err = failed("begin", err)
	default:
		t.guarded = s.guard.watch()
		t.rollback = sync.OnceValue(func() error {
			return t.end(func() {
				s.guard.unwatch(t.guarded)
				cancel()
				_ = t.conn.Close()
			})
		})
		return t, nil
	}
	if t.tx != nil {
		_ = t.tx.Rollback()
	}
	cancel()
	if t.conn != nil {
		_ = t.conn.Close()
	}
	return nil, err
}

// workFailed adds to work's error what the rollback showed.
func workFailed(ctx context.Context, err, rollback error) error {
	switch {
	case isOutage(err):
		// A statement of work met the full disk. SQLite may have rolled back
		// by itself then, so the rollback's own error says nothing.
		if errors.Is(err, idempotency.ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err)
	case errors.Is(rollback, errStillUsed) && ctx.Err() == nil:
		return fmt.Errorf("%w: %w", errStillUsed, err)
	case isEnded(rollback):
		return fmt.Errorf("sqlite: %w, which then failed: %w", idempotency.ErrTransactionEnded, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// contextEnded says what the rollback showed when ctx ended before the commit.
func contextEnded(ctx context.Context, rollback error) error {
	if isEnded(rollback) {
		return fmt.Errorf("sqlite: commit: %w", idempotency.ErrTransactionEnded)
	}
	return failed("commit", ctx.Err())
}

// commitFailed says what is known after a failed commit. The driver rolls back
// what a failed COMMIT leaves open.
func commitFailed(err error) error {
	switch {
	case isEnded(err):
		return fmt.Errorf("sqlite: commit: %w", idempotency.ErrTransactionEnded)
	case isCommitUnknown(err):
		return fmt.Errorf("sqlite: commit: %w: %w", idempotency.ErrCommitUnknown, err)
	}
	return failed("commit", err)
}
