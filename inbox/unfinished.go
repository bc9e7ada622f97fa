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
//	Fresh: it was rolled back ──▶ all of it is forgotten; run like any other
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

// unfinished remembers such transactions by the records they inserted, until each
// record's next claim: a few strings for each mistake, which stay if the message is
// never delivered here again.
type unfinished struct {
	mu      sync.Mutex
	records map[recordID]remembered
}

type recordID struct{ scope, key string }

func recordOf(claim idempotency.Claim) recordID { return recordID{claim.Scope, claim.Key} }

// remembered is a record of a transaction that may be committed.
type remembered struct {
	*endedTransaction

	succeeded bool // its handler did
}

type endedTransaction struct {
	cause   error
	records []recordID
}

// rememberUnfinished remembers a transaction that may be committed. Its goroutine
// may still run: everything read here was written before a handler was entered, or
// is guarded by the transaction.
func (b *batch[Tx]) rememberUnfinished(cause error) {
	succeeded := b.progress()
	ended := &endedTransaction{cause: cause}
	u := &b.in.unfinished
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.records == nil {
		u.records = map[recordID]remembered{}
	}
	for i, d := range b.decisions {
		done := true
		switch d.outcome {
		case Processed:
			done = succeeded > 0
			if b.in.bulk == nil {
				succeeded-- // they ran in this order
			}
		case Parked: // its letter was written before any handler ran
		case Duplicate, Failed, NotRun:
			continue // its record is not of this transaction
		}
		id := recordOf(b.claims[i])
		ended.records = append(ended.records, id)
		u.records[id] = remembered{ended, done}
	}
}

// cause returns why a message failed that is remembered as unfinished, else nil.
func (u *unfinished) cause(claim idempotency.Claim) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r, ok := u.records[recordOf(claim)]; ok && !r.succeeded {
		return r.cause
	}
	return nil
}

// anyCommitted reports whether a message is unfinished and its record was
// committed. Usually it looks at an empty map, once a batch.
func (u *unfinished) anyCommitted(claims []idempotency.Claim, verdicts []idempotency.Verdict) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.records) == 0 {
		return false
	}
	for i, claim := range claims {
		if verdicts[i] == idempotency.Fresh {
			u.rolledBack(recordOf(claim))
		}
	}
	found := false
	for i, claim := range claims {
		r, ok := u.records[recordOf(claim)]
		switch {
		case !ok || verdicts[i] == idempotency.Fresh:
		case r.succeeded:
			delete(u.records, recordOf(claim))
		default:
			found = true
		}
	}
	return found
}

// rolledBack forgets the transaction that had inserted a record, now that the
// record was found missing: then all of its records are.
func (u *unfinished) rolledBack(id recordID) {
	r, ok := u.records[id]
	if !ok {
		return
	}
	for _, other := range r.records {
		if u.records[other].endedTransaction == r.endedTransaction {
			delete(u.records, other)
		}
	}
}

// forget ends the memory of one record, now that its claim had this verdict.
func (u *unfinished) forget(claim idempotency.Claim, verdict idempotency.Verdict) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if verdict == idempotency.Fresh {
		u.rolledBack(recordOf(claim))
	}
	delete(u.records, recordOf(claim))
}

// settleUnfinished finds out what became of a message that is remembered, and sets
// it aside if its record was committed. If not, or if that can't be told yet,
// settled is false.
func (in *Inbox[Tx]) settleUnfinished(ctx context.Context, message *Message, result *Result, cause error) (settled bool, err error) {
	start := time.Now()
	own := in.claim(message)
	cause = fmt.Errorf("%w: %w", errUnfinished, cause)
	letters := []DeadLetter{in.letter(message, ReasonUnfinished, cause, 1)}
	claims := []idempotency.Claim{own, in.asideClaim(string(ReasonUnfinished), message, own.Key)}
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
		in.unfinished.forget(own, idempotency.Fresh)
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
	in.unfinished.forget(own, idempotency.Duplicate)
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
