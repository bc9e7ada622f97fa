package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// Mode says whether Redrive and Discard act.
type Mode bool

const (
	// DryRun only counts what is selected.
	DryRun Mode = false
	// Apply acts.
	Apply Mode = true
)

// RedriveResult counts dead letters by what became of them.
type RedriveResult struct {
	// Selected is how many the filter selected; in a DryRun the only count.
	Selected int
	// Redriven: handled and removed, in one transaction.
	Redriven int
	// Failed: the handler failed again; the letter stays, with the new error.
	Failed int
	// Blocked: an older dead letter with the same key must go first, or
	// another transaction is at work on this one.
	Blocked int
	// Gone: somebody else redrove or discarded it meanwhile.
	Gone int
}

// letterPage is how many dead letters are held in memory at a time; payloads may be large.
const letterPage = 100

// discardBatch bounds one deletion, as pruneBatch does.
const discardBatch = 1000

// DeadLetters lists the selected dead letters, oldest first.
func (in *Inbox[Tx]) DeadLetters(ctx context.Context, filter Filter) ([]DeadLetter, error) {
	if in.invalid != nil {
		return nil, in.invalid
	}
	return in.store.DeadLetters(ctx, in.consumer, filter)
}

// Redrive runs the selected dead letters through the handler, oldest first, each
// in one transaction with its removal. Messages that are set aside behind a key
// while Redrive works are selected too, so that the key is free in the end; a
// letter is tried once per call. A bulk handler gets one message at a time.
//
// A letter whose handler fails stays, with the error and one attempt more; with
// ParkKey the later ones of its key are Blocked. Redrive goes on with the others.
// It returns an error, with the counts so far, when the store is unavailable or
// ctx ends. If the error is idempotency.ErrCommitUnknown, the letter that
// was at work is redriven if it is gone.
//
// The handler's timeout applies to each call; MaxAttempts and Retention do not.
func (in *Inbox[Tx]) Redrive(ctx context.Context, filter Filter, mode Mode) (RedriveResult, error) {
	var result RedriveResult
	blocked := parkedKeys{}
	err := in.eachLetter(ctx, filter, func(letter *DeadLetter) error {
		result.Selected++
		if mode == DryRun {
			return nil
		}
		if letter.ParksKey && blocked.has(&letter.Message) {
			result.Blocked++
			return nil
		}
		start := time.Now()
		err := in.retryConflicts(ctx, func() error { return in.redriveOne(ctx, letter.Number) })
		if err == nil {
			result.Redriven++
			in.report(ctx, Event{Kind: EventRedriven, Message: letter.Message, Count: 1, Reason: letter.Reason, Duration: time.Since(start)})
			return nil
		}
		if err := in.interruption(ctx, err); err != nil {
			return err
		}
		if letter.ParksKey && !errors.Is(err, ErrGone) {
			blocked.add(&letter.Message)
		}
		switch {
		case errors.Is(err, ErrGone):
			result.Gone++
			return nil
		case errors.Is(err, ErrBehind), errors.Is(err, idempotency.ErrInProgress):
			result.Blocked++
			return nil
		}
		result.Failed++
		return in.redriveFailed(ctx, letter, err)
	})
	return result, err
}

func (in *Inbox[Tx]) redriveOne(ctx context.Context, number int64) error {
	return in.transact(ctx, func(ctx context.Context, t *transaction) error {
		return in.store.TakeDeadLetter(ctx, in.consumer, number, func(ctx context.Context, tx Tx, letter DeadLetter) error {
			handlerCtx, cancel := t.handlerContext(ctx)
			defer cancel(nil)
			if err := in.call(handlerCtx, t, tx, &letter.Message); err != nil {
				return err
			}
			t.finish()
			return nil
		})
	})
}

func (in *Inbox[Tx]) redriveFailed(ctx context.Context, letter *DeadLetter, cause error) error {
	in.report(ctx, Event{Kind: EventFailed, Message: letter.Message, Count: 1, Attempts: letter.Attempts + 1, Err: cause})
	err := in.retryConflicts(ctx, func() error {
		return in.store.FailDeadLetter(ctx, in.consumer, letter.Number, errorText(cause))
	})
	if err == nil || errors.Is(err, ErrGone) || errors.Is(err, idempotency.ErrInProgress) {
		// In progress: the rollback under an abandoned handler takes its time.
		// The letter stays, the new error is in the log at least.
		return nil
	}
	if err := in.interruption(ctx, err); err != nil {
		return err
	}
	return fmt.Errorf("inbox: keeping the error of dead letter %d: %w", letter.Number, err)
}

// Discard deletes the selected dead letters for good and returns how many there
// were. Keys that nothing waits behind any more are free. Their records stay, so
// that a redelivery is still a duplicate.
func (in *Inbox[Tx]) Discard(ctx context.Context, filter Filter, mode Mode) (int, error) {
	total := 0
	if mode == DryRun {
		err := in.eachLetter(ctx, filter, func(*DeadLetter) error {
			total++
			return nil
		})
		return total, err
	}
	if in.invalid != nil {
		return 0, in.invalid
	}
	for {
		part := filter
		part.Limit = discardBatch
		if filter.Limit > 0 {
			part.Limit = min(part.Limit, filter.Limit-total)
		}
		var n int
		err := in.retryConflicts(ctx, func() (err error) {
			n, err = in.store.DiscardDeadLetters(ctx, in.consumer, part)
			return err
		})
		if err != nil {
			if err := in.interruption(ctx, err); err != nil {
				return total, err
			}
			return total, fmt.Errorf("inbox: discarding dead letters: %w", err)
		}
		if n > 0 {
			in.report(ctx, Event{Kind: EventDiscarded, Count: n})
		}
		if total += n; n < part.Limit || total == filter.Limit {
			return total, nil
		}
	}
}

// eachLetter visits the selected dead letters in the order of their numbers, page
// by page, up to the filter's limit or until none is left, those written
// meanwhile included.
func (in *Inbox[Tx]) eachLetter(ctx context.Context, filter Filter, visit func(*DeadLetter) error) error {
	if in.invalid != nil {
		return in.invalid
	}
	for left := filter.Limit; ; {
		page := filter
		page.Limit = letterPage
		if filter.Limit > 0 {
			page.Limit = min(page.Limit, left)
		}
		letters, err := in.store.DeadLetters(ctx, in.consumer, page)
		if err != nil {
			if err := in.interruption(ctx, err); err != nil {
				return err
			}
			return fmt.Errorf("inbox: listing dead letters: %w", err)
		}
		for i := range letters {
			if letters[i].Number <= filter.After {
				// Going on would redrive it for ever.
				return fmt.Errorf("inbox: the store returned dead letter %d after %d: it does not honour Filter.After", letters[i].Number, filter.After)
			}
			if err := visit(&letters[i]); err != nil {
				return err
			}
			filter.After = letters[i].Number
		}
		if left -= len(letters); len(letters) == 0 || left == 0 {
			return nil
		}
	}
}
