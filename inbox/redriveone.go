package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// redriveEnd is what became of one dead letter in a Redrive.
type redriveEnd uint8

const (
	redriven redriveEnd = iota + 1
	failed
	failedAndRewritten
	blockedByOlder
	gone
)

// delivery tells dead letters of different deliveries apart.
type delivery struct{ source, id, position string }

func deliveryOf(letter *DeadLetter) delivery {
	return delivery{letter.Message.Source, letter.Message.ID, letter.Message.Position}
}

// redriving is one try at a dead letter. An abandoned handler keeps it, so each
// try gets a new one.
type redriving[Tx any] struct {
	transaction

	in     *Inbox[Tx]
	number int64
	letter DeadLetter // whole, as it was taken
}

// transact implements series.
func (d *redriving[Tx]) transact(ctx context.Context, watch *watch) error {
	if err := watch.begin(&d.transaction); err != nil {
		return err
	}
	return d.in.store.TakeDeadLetter(ctx, d.in.consumer, d.number, d.run)
}

// run is the work of Store.TakeDeadLetter.
func (d *redriving[Tx]) run(ctx context.Context, tx Tx, letter DeadLetter) error {
	d.letter = letter
	ctx, cancel := d.handlerContext(ctx)
	defer cancel(nil)
	if err := d.in.call(ctx, &d.transaction, tx, &letter.Message); err != nil {
		return err
	}
	d.finish()
	return nil
}

// redrive runs one dead letter, which was listed without its payload. An error
// means that the store is out or ctx has ended.
func (in *Inbox[Tx]) redrive(ctx context.Context, listed *DeadLetter) (redriveEnd, error) {
	start := time.Now()
	var try *redriving[Tx]
	err := in.retryConflicts(ctx, func() error {
		try = &redriving[Tx]{transaction: transaction{began: time.Now()}, in: in, number: listed.Number}
		err := in.run(ctx, try)
		if errors.Is(err, idempotency.ErrTransactionEnded) {
			err = endedError(err)
		}
		return err
	})
	if err == nil {
		in.report(ctx, Event{Kind: EventRedriven, Message: listed.Message, Count: 1, DeadLetter: listed.Number, Reason: listed.Reason, Duration: time.Since(start)})
		return redriven, nil
	}
	if err := in.interruption(ctx, err); err != nil {
		return 0, err
	}
	_, handlers := errors.AsType[*handlerError](err)
	switch {
	case handlers:
	case errors.Is(err, ErrGone):
		return gone, nil
	case errors.Is(err, ErrBehind), errors.Is(err, idempotency.ErrInProgress):
		return blockedByOlder, nil
	}
	in.report(ctx, Event{Kind: EventFailed, Message: listed.Message, Count: 1, DeadLetter: listed.Number, Attempts: listed.Attempts + 1, Err: err})
	return in.redriveFailed(ctx, listed, try, err)
}

// redriveFailed keeps the new error with the letter. If a handler that ended the
// transaction committed the removal of its letter without success, that was the
// last copy of the message: it is written again.
func (in *Inbox[Tx]) redriveFailed(ctx context.Context, listed *DeadLetter, try *redriving[Tx], cause error) (redriveEnd, error) {
	err := in.retryConflicts(ctx, func() error {
		return in.store.FailDeadLetter(ctx, in.consumer, listed.Number, errorText(cause, rowErrorBytes))
	})
	switch {
	case err == nil, errors.Is(err, idempotency.ErrInProgress):
		// In progress: the rollback under an abandoned handler takes its time.
		// The letter stays, the new error is in the log at least.
		return failed, nil
	case errors.Is(err, ErrGone) && !mayBeCommitted(cause):
		return failed, nil // and discarded by somebody else meanwhile
	case errors.Is(err, ErrGone):
		if try.progress() > 0 {
			return redriven, nil
		}
		if err = in.rewrite(ctx, try.letter, cause); err == nil {
			return failedAndRewritten, nil
		}
	}
	if err := in.interruption(ctx, err); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("inbox: keeping dead letter %d and its error: %w", listed.Number, err)
}

// rewrite writes a letter again under a new number, which makes it the last of its key.
func (in *Inbox[Tx]) rewrite(ctx context.Context, letter DeadLetter, cause error) error {
	m := &letter.Message
	claims := []idempotency.Claim{in.asideClaim("rewritten", m, in.claim(m).Key+"#"+strconv.FormatInt(letter.Number, 10))}
	again := in.letter(m, ReasonUnfinished, fmt.Errorf("%w: %w", errUnfinished, cause), letter.Attempts+1)
	again.ParksKey = letter.ParksKey
	err := in.retryConflicts(ctx, func() error {
		return in.store.Atomic(ctx, claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
			if verdicts[0] != idempotency.Fresh {
				return nil // its commit was unknown, and done
			}
			return in.store.AddDeadLetters(ctx, tx, []DeadLetter{again})
		})
	})
	if err != nil {
		return err
	}
	in.report(ctx, Event{Kind: EventParked, Message: *m, Count: 1, Reason: ReasonUnfinished, Attempts: again.Attempts, Err: cause})
	return nil
}
