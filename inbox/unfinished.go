package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// A handler that commits the transaction it was lent commits the records of all
// messages in it, also of those whose handler then fails or never runs. Their next
// claim says Duplicate, and to believe it would lose them:
//
//	transaction was ended by its handler, or may have been
//	   │ which of its new messages had not succeeded is remembered
//	   ▼ next claim of such a message
//	Fresh: it was rolled back ──▶ forgotten; run like any other
//	Duplicate: it was committed ─▶ set aside, unfinished; then forgotten
//
// The memory is that of this process. If it dies before the next claim, or the
// message is delivered to another one first, that claim's Duplicate is believed.

var (
	errUnfinished = errors.New("its record was committed although its handler had not succeeded")
	errRolledBack = errors.New("nothing was committed")
)

// endedError is ErrTransactionEnded with the fix.
func endedError(err error) error {
	return fmt.Errorf("the handler must leave commit and rollback to the inbox and return nil or an error: %w", err)
}

// mayBeCommitted reports a failure after which the transaction may be committed
// all the same. The store tells of an ended one when the work returns; work that
// never does, or ends its goroutine, leaves it open.
func mayBeCommitted(err error) bool {
	_, abandoned := errors.AsType[*abandonedError](err)
	return abandoned || errors.Is(err, errGoexit) || errors.Is(err, idempotency.ErrTransactionEnded)
}

// unfinished remembers by their records the messages of such transactions, and
// why each failed. It holds them for as long as the store is out or the message is
// not delivered again: a few strings for each such mistake.
type unfinished struct {
	mu     sync.Mutex
	causes map[recordID]error
}

type recordID struct{ scope, key string }

func (u *unfinished) remember(claim idempotency.Claim, cause error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.causes == nil {
		u.causes = map[recordID]error{}
	}
	u.causes[recordID{claim.Scope, claim.Key}] = cause
}

// cause returns why the message failed, nil if it is none of these.
func (u *unfinished) cause(claim idempotency.Claim) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.causes[recordID{claim.Scope, claim.Key}]
}

// anyCommitted reports whether the record of one of these was committed, and
// forgets those whose verdicts show that they were rolled back. Usually it looks
// at an empty map, once a batch.
func (u *unfinished) anyCommitted(claims []idempotency.Claim, verdicts []idempotency.Verdict) (found bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.causes) == 0 {
		return false
	}
	for i, claim := range claims {
		id := recordID{claim.Scope, claim.Key}
		if verdicts[i] == idempotency.Fresh {
			delete(u.causes, id)
		} else if u.causes[id] != nil {
			found = true
		}
	}
	return found
}

func (u *unfinished) forget(claim idempotency.Claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.causes, recordID{claim.Scope, claim.Key})
}

// rememberUnfinished remembers what had not succeeded in a transaction that may be
// committed. Its goroutine may still run: everything read here was written before
// a handler was entered, or is guarded by the transaction.
func (b *batch[Tx]) rememberUnfinished(cause error) {
	if b.transaction == nil {
		return // it never began
	}
	succeeded, finished := b.progress()
	for i, d := range b.decisions {
		switch {
		case d.outcome == Processed && b.in.bulk == nil && succeeded > 0:
			succeeded-- // they ran in this order
			continue
		case d.outcome == Processed && b.in.bulk != nil && succeeded > 0:
			continue
		case d.outcome == Parked && finished:
			continue
		case d.outcome != Processed && d.outcome != Parked:
			continue // it was a duplicate before
		}
		b.in.unfinished.remember(b.claims[i], cause)
	}
}

// settleUnfinished finds out what became of a message that is remembered, and sets
// it aside if its record was committed. If not, or if that can't be told yet,
// settled is false.
func (in *Inbox[Tx]) settleUnfinished(ctx context.Context, message *Message, result *Result, cause error) (settled bool, err error) {
	start := time.Now()
	own := in.claim(message)
	cause = fmt.Errorf("%w: %w", errUnfinished, cause)
	letters := []DeadLetter{in.letter(message, ReasonUnfinished, cause, 1)}
	claims := []idempotency.Claim{own, in.asideClaim(ReasonUnfinished, message, own.Key)}
	var aside idempotency.Verdict
	err = in.retryConflicts(ctx, func() error {
		return in.store.Atomic(ctx, claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
			if aside = verdicts[1]; verdicts[0] == idempotency.Fresh {
				return errRolledBack
			}
			if aside != idempotency.Fresh {
				return nil
			}
			return in.store.AddDeadLetters(ctx, tx, letters)
		})
	})
	switch {
	case errors.Is(err, errRolledBack):
		in.unfinished.forget(own)
		return false, nil
	case err != nil:
		if err := in.interruption(ctx, err); err != nil {
			return false, err
		}
		if errors.Is(err, idempotency.ErrInProgress) {
			return false, nil
		}
		in.fail(ctx, message, result, fmt.Errorf("%w (and setting it aside failed: %w)", cause, err), in.backoffMax, 0)
		return true, nil
	}
	in.unfinished.forget(own)
	if aside != idempotency.Fresh {
		*result = Result{Outcome: Duplicate}
		in.reportDecision(ctx, message, decision{outcome: Duplicate}, time.Since(start))
		return true, nil
	}
	*result = Result{Outcome: Parked, Err: cause}
	in.report(ctx, Event{
		Kind: EventParked, Message: *message, Count: 1, Reason: ReasonUnfinished, Attempts: 1, Duration: time.Since(start), Err: cause,
	})
	return true, nil
}
