package idempotency

import "errors"

// Errors of a Store. Each is wrapped with what was being done; test with errors.Is.
var (
	// ErrInProgress: another transaction holds one of the claims and did not
	// end within the store's claim wait. Nothing was claimed, nothing was done.
	ErrInProgress = errors.New("claimed by a transaction that is still running")

	// ErrConflict: the database chose this transaction as the victim of a
	// deadlock or serialization failure. It was rolled back; run it again, but
	// not for ever: work may meet the same conflict each time.
	ErrConflict = errors.New("transaction lost a conflict with another one")

	// ErrUnavailable: the store could not be reached, refused new work or
	// dropped the connection before the commit. Nothing was done. An outage of
	// the store says nothing about the work, so it never counts as an attempt.
	ErrUnavailable = errors.New("store is unavailable")

	// ErrCommitUnknown: the connection was lost while the commit was under
	// way. The work was done or it was not; the next claim will tell.
	ErrCommitUnknown = errors.New("commit outcome is unknown")

	// ErrTransactionEnded: the work committed or rolled back the transaction
	// it was lent. The next claim will tell which; after a commit by work that
	// failed it says Duplicate of something that was not done. An error that the
	// work returned as well is wrapped, too.
	ErrTransactionEnded = errors.New("the transaction was ended by the code it was lent to")

	// ErrNotMigrated: the store's tables are missing or older than this version needs.
	ErrNotMigrated = errors.New("store is not migrated")
)
