package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/idempotency"
)

var errWaitedEnough = errors.New("the claim wait is over")

// transact runs work in a write transaction and commits it if work returns nil.
// Errors of work come back as they are; those of the transaction are classified.
func (s *Store) transact(ctx context.Context, work func(ctx context.Context, tx *sql.Tx) error) error {
	// The transaction lives under a context that ends with this call, and
	// database/sql rolls back when it does: for a panic, for runtime.Goexit, and
	// while work hangs and the caller's context has ended.
	txCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	tx, err := s.begin(ctx, txCtx, cancel)
	if err != nil {
		return err
	}
	// After a commit this does nothing. Before one, it waits for the rollback,
	// so that the claim is free when a panic leaves this function.
	defer func() { _ = tx.Rollback() }()

	if err := work(txCtx, tx); err != nil {
		return workFailed(ctx, err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return commitFailed(ctx, err)
	}
	return nil
}

// begin takes the write lock. The wait for it, first for this process's
// connection and then for other processes, ends with ctx or the claim wait.
func (s *Store) begin(ctx, txCtx context.Context, cancel context.CancelCauseFunc) (*sql.Tx, error) {
	patience := time.AfterFunc(s.claimWait, func() { cancel(errWaitedEnough) })
	tx, err := s.writer.BeginTx(txCtx, nil)
	late := !patience.Stop()
	switch {
	case ctx.Err() != nil:
		err = failed("begin", ctx.Err())
	case late, err != nil && isBusy(err):
		err = fmt.Errorf("sqlite: begin: %w: waited %v for the write lock", idempotency.ErrInProgress, s.claimWait)
	case err != nil:
		err = failed("begin", err)
	default:
		return tx, nil
	}
	if tx != nil {
		_ = tx.Rollback()
	}
	return nil, err
}

// workFailed adds to work's error what the rollback showed.
func workFailed(ctx context.Context, err, rollback error) error {
	switch {
	case ctx.Err() != nil:
		if errors.Is(err, ctx.Err()) {
			return err
		}
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case isOutage(err):
		// A statement of work met the full disk. SQLite may have rolled back
		// by itself then, so the rollback's own error says nothing.
		if errors.Is(err, idempotency.ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err)
	case rollback != nil && isEnded(rollback):
		return fmt.Errorf("%w (and %w)", err, idempotency.ErrTransactionEnded)
	}
	return err
}

// commitFailed says what is known after a failed commit. The driver rolls back
// what a failed COMMIT leaves open.
func commitFailed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && (isEnded(err) || errors.Is(err, ctx.Err())):
		return failed("commit", ctx.Err())
	case isEnded(err):
		return fmt.Errorf("sqlite: commit: %w", idempotency.ErrTransactionEnded)
	case isCommitUnknown(err):
		return fmt.Errorf("sqlite: commit: %w: %w", idempotency.ErrCommitUnknown, err)
	}
	return failed("commit", err)
}
