package idempotency

import "context"

// Store keeps records. Tx is the transaction type lent to the work: pgx.Tx or *sql.Tx.
// Package storetest holds the conformance suite every Store passes.
type Store[Tx any] interface {
	// Atomic begins a transaction with the claims and calls work with the
	// verdicts, in the order of the claims. When work returns nil, everything
	// is committed together; when it returns an error, everything is rolled
	// back and that error is returned, wrapped. Of equal claims in one call
	// the first counts; the others are Duplicate or Reused.
	//
	// work is called even if nothing is Fresh. It must not end tx, and tx is
	// dead once it has returned. If work ended tx all the same, the error is
	// ErrTransactionEnded, whatever work returned, as far as the driver can tell.
	// Store errors are the sentinels of this package.
	//
	// Atomic blocks while another transaction holds a claim, bounded by the
	// store's claim wait. When ctx ends before the commit began, the
	// transaction is certain to be rolled back soon, even if work never
	// returns; a commit that has begun runs to its own deadline.
	Atomic(ctx context.Context, claims []Claim, work func(ctx context.Context, tx Tx, verdicts []Verdict) error) error
}
