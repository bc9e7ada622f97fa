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
	tx, release, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer release()

	// Whoever is first rolls back, and sees whether work had ended the
	// transaction before. That a panic or runtime.Goexit leaves this function
	// waits for the rollback, so that the claim is free then.
	rollback := sync.OnceValue(tx.Rollback)
	defer func() { _ = rollback() }()
	unwatch := context.AfterFunc(ctx, func() { _ = rollback() })
	defer unwatch()

	if err := work(ctx, tx); err != nil {
		return workFailed(ctx, err, rollback())
	}
	if !unwatch() {
		return contextEnded(ctx, rollback())
	}
	if err := tx.Commit(); err != nil {
		return commitFailed(err)
	}
	return nil
}

// begin takes the write lock. The wait for it, first for this process's
// connection and then for other processes, ends with ctx or the claim wait. The
// transaction lives until release is called: ctx would have database/sql roll it
// back without a word about what became of it.
func (s *Store) begin(ctx context.Context) (tx *sql.Tx, release func(), err error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, cancel)
	patience := time.AfterFunc(s.claimWait, cancel)
	tx, err = s.writer.BeginTx(own, nil)
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
		return tx, cancel, nil
	}
	if tx != nil {
		_ = tx.Rollback()
	}
	cancel()
	return nil, nil, err
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
