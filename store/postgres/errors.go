package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// SQLSTATEs that decide what is known about a transaction.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	stateLockNotAvailable     = "55P03"
	stateSerializationFailure = "40001"
	stateDeadlockDetected     = "40P01"
	stateUndefinedTable       = "42P01"
	stateUndefinedColumn      = "42703"
	stateInvalidSchemaName    = "3F000"
	stateDuplicatePrepared    = "42P05"
	stateUnknownPrepared      = "26000"
	stateInsufficientRights   = "42501"
	stateReadOnly             = "25006"
	stateDiskFull             = "53100"
	stateTooManyConnections   = "53300"
	stateFailedTransaction    = "25P02"
	stateUnknownDatabase      = "3D000"
	stateCancelled            = "57014" // by statement_timeout, or by request
)

// stateOf returns the SQLSTATE of an error that came from the server, by the
// method that pgx's and lib/pq's error types share; else "".
func stateOf(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// isOutage reports that the server is going away, coming up, full, or not the one
// that takes writes: nothing that other work would cure. The rest of class 53
// (memory, limits such as temp_file_limit) is what one statement asked for.
func isOutage(state string) bool {
	switch state {
	case stateDiskFull, stateTooManyConnections, stateReadOnly:
		return true
	}
	return strings.HasPrefix(state, "57P")
}

// isConnectionState: of a connection that was lost, it says how. On one that
// lives it speaks of another, dblink's for one.
func isConnectionState(state string) bool { return strings.HasPrefix(state, "08") }

// isConflict reports that the server chose this transaction as a victim.
func isConflict(state string) bool {
	return state == stateSerializationFailure || state == stateDeadlockDetected
}

// isUnprepared reports that a prepared statement was found where it should not
// be, or not where it should.
func isUnprepared(state string) bool {
	return state == stateDuplicatePrepared || state == stateUnknownPrepared
}

const unprepared = "prepared statements do not survive between here and the server, as through a PgBouncer in transaction mode: " +
	"connect with default_query_exec_mode=exec or cache_describe, or set max_prepared_statements in PgBouncer 1.21 or later"

// storeError says what the failure of one of the store's own statements means.
// Whatever is not known to be anything else is the store's unavailability: the
// work is not to blame for it.
func storeError(ctx context.Context, doing string, err error) error {
	if isSentinel(err) {
		return fmt.Errorf("postgres: %s: %w", doing, err)
	}
	switch state := stateOf(err); {
	case state == stateLockNotAvailable:
		return fmt.Errorf("postgres: %s: %w: %w", doing, idempotency.ErrInProgress, err)
	case isConflict(state):
		return fmt.Errorf("postgres: %s: %w: %w", doing, idempotency.ErrConflict, err)
	case state == stateUndefinedTable, state == stateUndefinedColumn, state == stateInvalidSchemaName:
		return fmt.Errorf("postgres: %s: %w: run Migrate, or give WithSchema the schema that was migrated: %w", doing, idempotency.ErrNotMigrated, err)
	case isUnprepared(state):
		return fmt.Errorf("postgres: %s: %w: %s: %w", doing, idempotency.ErrUnavailable, unprepared, err)
	case strings.HasPrefix(state, "28"), state == stateUnknownDatabase:
		return fmt.Errorf("postgres: mend user, password or database in the connection URL: %s: %w: %w", doing, idempotency.ErrUnavailable, err)
	case state == stateInsufficientRights:
		return fmt.Errorf("postgres: %s: %w: the role lacks a right on what the server names: grant it all that the package documentation lists under Rights: %w",
			doing, idempotency.ErrUnavailable, err)
	}
	if ctx.Err() != nil {
		return endedError(ctx, fmt.Errorf("%s: %w", doing, err))
	}
	return fmt.Errorf("postgres: %s: %w: %w", doing, idempotency.ErrUnavailable, err)
}

// endedError says that ctx has ended and why, and adds the error that came of
// it, if any.
func endedError(ctx context.Context, err error) error {
	ended := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(ended, cause) {
		ended = fmt.Errorf("%w: %w", ended, cause)
	}
	if err == nil {
		return fmt.Errorf("postgres: rolled back, because the context has ended: %w", ended)
	}
	return fmt.Errorf("postgres: rolled back, because the context has ended: %w: %w", ended, err)
}

// workError says what an error of the work means, given what is known about the
// transaction it was lent: whether it was in the failed state or its connection
// was lost. If neither, the error did not come from this transaction, whatever
// SQLSTATE it has.
func workError(err error, failed, lost bool) error {
	state := stateOf(err)
	switch {
	case isSentinel(err):
		return err
	case (failed || lost) && isConflict(state):
		return fmt.Errorf("postgres: %w: %w", idempotency.ErrConflict, err)
	case failed && isUnprepared(state):
		// The driver's doing: no other work and no attempt would cure it.
		return fmt.Errorf("postgres: statement of the work: %w: %s: %w", idempotency.ErrUnavailable, unprepared, err)
	case (failed || lost) && isOutage(state):
		return fmt.Errorf("postgres: %w: %w", idempotency.ErrUnavailable, err)
	case failed && state == stateFailedTransaction:
		return fmt.Errorf("postgres: an earlier statement of the handler failed and its error was not returned: %w", err)
	case lost && (state == "" || isConnectionState(state)):
		return fmt.Errorf("postgres: connection lost while the work ran: %w: %w", idempotency.ErrUnavailable, err)
	}
	return err
}

// commitError says what is known after COMMIT failed. unsent: it never left. lost: so is
// the connection, or it can't be told; one that lives has answered, whatever the SQLSTATE.
func commitError(err error, unsent, lost bool) error {
	state := stateOf(err)
	switch {
	case unsent:
		return fmt.Errorf("postgres: connection lost before the commit: %w: %w", idempotency.ErrUnavailable, err)
	case isConflict(state):
		return fmt.Errorf("postgres: commit: %w: %w", idempotency.ErrConflict, err)
	case state == "", strings.HasPrefix(state, "57P"), lost && isConnectionState(state):
		// A server that goes away says so after a commit as well as before.
		return fmt.Errorf("postgres: commit: %w: %w", idempotency.ErrCommitUnknown, err)
	case isOutage(state):
		return fmt.Errorf("postgres: commit: %w: %w", idempotency.ErrUnavailable, err)
	}
	// The work's own failure: a constraint deferred to the commit, or another database
	// that postgres_fdw could not reach.
	return fmt.Errorf("postgres: rolled back at the commit: %w", err)
}

// workEnded says that the work has ended its transaction, and adds its error, if any.
func workEnded(err error) error {
	switch {
	case err == nil:
		return errEnded
	case errors.Is(err, idempotency.ErrTransactionEnded):
		return err
	}
	return fmt.Errorf("%w; then it failed: %w", errEnded, err)
}

func isSentinel(err error) bool {
	for _, sentinel := range []error{
		idempotency.ErrInProgress, idempotency.ErrConflict, idempotency.ErrUnavailable,
		idempotency.ErrCommitUnknown, idempotency.ErrTransactionEnded, idempotency.ErrNotMigrated,
		outbox.ErrSettings, outbox.ErrLog, outbox.ErrNoRelay, outbox.ErrRunning, outbox.ErrPassed, outbox.ErrNoEvent, outbox.ErrRestored,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// What a work did wrong with its transaction. All of them were rolled back.
var (
	errSwallowed = errors.New("postgres: rolled back: a statement of the work failed, and the work returned nil: " +
		"return its error, or undo it with a savepoint (tx.Begin)")
	errRowsOpen   = errors.New("postgres: rolled back: the work returned with the rows of a query still open: close them (defer rows.Close())")
	errStillUsed  = errors.New("postgres: rolled back: the work returned while one of its goroutines still used the transaction: wait for it")
	errBorrowed   = errors.New("postgres: this transaction is Onceward's to end: return nil to commit it, or an error to roll it back")
	errRolledBack = errors.New("postgres: rolled back: the work called Rollback and returned nil: return an error to roll back")
	errEnded      = fmt.Errorf("postgres: %w: it must return nil or an error instead of COMMIT or ROLLBACK", idempotency.ErrTransactionEnded)
)
