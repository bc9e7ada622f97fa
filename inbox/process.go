package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/onceward/onceward/idempotency"
)

const (
	// conflictRetries is how often a transaction that lost a conflict is run
	// again at once; each pause is drawn from a longer span.
	conflictRetries = 5
	conflictPause   = 20 * time.Millisecond

	// inProgressPause lets the other holder of a claim finish. It is short,
	// because the store has already waited for that.
	inProgressPause = time.Second
)

// Process implements Processor.
func (in *Inbox[Tx]) Process(ctx context.Context, messages []Message) ([]Result, error) {
	results := make([]Result, len(messages))
	if err := in.unusable(); err != nil {
		return results, err
	}
	for i := range messages {
		if messages[i].Source == "" {
			return results, fmt.Errorf("inbox: Source of message %d of %d is empty: "+
				"the adapter must set it to the topic or queue within which IDs are unique; in a test, any name", i+1, len(messages))
		}
	}
	r := runner{timeout: in.handlerTimeout}
	defer r.close()
	for start := 0; start < len(messages); start += in.batch {
		end := min(start+in.batch, len(messages))
		r.last = end == len(messages)
		began := time.Now()
		ok, err := in.processBatch(ctx, &r, messages[start:end], results[start:end])
		in.noteStore(ctx, began, err)
		if !ok || err != nil {
			return results, err
		}
	}
	return results, nil
}

// processBatch runs messages in one transaction and, if that fails, one by one
// up to the first that fails alone. Then ok is false.
func (in *Inbox[Tx]) processBatch(ctx context.Context, r *runner, messages []Message, results []Result) (ok bool, err error) {
	if len(messages) > 1 {
		err := in.attempt(ctx, r, messages, results)
		if err == nil {
			return true, nil
		}
		if err := in.interruption(ctx, err); err != nil {
			return false, err
		}
		if errors.Is(err, idempotency.ErrTransactionEnded) {
			// Which message's handler did it is not known, and none may fail for it.
			in.report(ctx, Event{Kind: EventFailed, Count: 1, Err: err})
		}
		in.counters.retries.Add(1)
		r.last = false
	}
	for i := range messages {
		if err := in.processOne(ctx, r, messages[i:i+1], &results[i]); err != nil {
			return false, err
		}
		if results[i].Outcome == Failed {
			return false, nil
		}
	}
	return true, nil
}

// processOne runs one message in a transaction of its own and applies the
// failure policy.
func (in *Inbox[Tx]) processOne(ctx context.Context, r *runner, one []Message, result *Result) error {
	message := &one[0]
	single := [1]Result{}
	err := in.attempt(ctx, r, one, single[:])
	if err == nil {
		*result = single[0]
		return nil
	}
	if err := in.interruption(ctx, err); err != nil {
		return err
	}
	if cause := in.unfinished.cause(in.claim(message)); cause != nil {
		if settled, err := in.settleUnfinished(ctx, message, result, cause); settled || err != nil {
			return err
		}
	}
	_, handlers := errors.AsType[*handlerError](err)
	_, permanent := errors.AsType[*permanentError](err)
	switch {
	case errors.Is(err, errIDReused):
		return in.setAside(ctx, message, result, ReasonIDReused, errIDReused, 0)
	case permanent:
		return in.setAside(ctx, message, result, ReasonPermanent, err, 1)
	case errors.Is(err, idempotency.ErrInProgress) && !handlers:
		in.fail(ctx, message, result, err, inProgressPause, 0)
		return nil
	}
	return in.failedAttempt(ctx, message, result, err)
}

// failedAttempt counts the failure of a message, which decides what follows.
func (in *Inbox[Tx]) failedAttempt(ctx context.Context, message *Message, result *Result, cause error) error {
	claim := in.claim(message)
	attempts := 0
	err := in.retryConflicts(ctx, func() (err error) {
		attempts, err = in.store.CountAttempt(ctx, claim.Scope, claim.Key, errorText(cause, rowErrorBytes), claim.Retention)
		return err
	})
	switch {
	case err != nil:
		if err := in.interruption(ctx, err); err != nil {
			return err
		}
		in.fail(ctx, message, result, fmt.Errorf("%w (and counting the attempt failed: %w)", cause, err), in.backoffMax, 0)
		return nil
	case attempts >= in.maxAttempts:
		return in.setAside(ctx, message, result, ReasonAttempts, cause, attempts)
	}
	pause := in.backoff(attempts)
	if asked, ok := errors.AsType[*retryAfterError](cause); ok {
		pause = asked.pause
	}
	in.fail(ctx, message, result, cause, pause, attempts)
	return nil
}

// attempt runs messages in one transaction. When it is committed, and only
// then, results are filled and reported.
func (in *Inbox[Tx]) attempt(ctx context.Context, r *runner, messages []Message, results []Result) error {
	start := time.Now()
	var b *batch[Tx]
	err := in.retryConflicts(ctx, func() error {
		// An abandoned handler keeps the batch it belongs to, so each
		// transaction gets a new one.
		b = in.newBatch(start, messages)
		err := in.run(ctx, r, &b.transaction, b)
		if errors.Is(err, idempotency.ErrTransactionEnded) {
			err = endedError(err)
		}
		// Of a handler that was abandoned because ctx ended, another process may
		// handle the message next; that it had committed is far less likely.
		if err != nil && mayBeCommitted(err) && (ctx.Err() == nil || errors.Is(err, idempotency.ErrTransactionEnded)) {
			b.rememberUnfinished(err)
		}
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(start)
	for i, d := range b.decisions {
		results[i] = Result{Outcome: d.outcome, Err: d.cause(&messages[i])}
		in.reportDecision(ctx, &messages[i], d, took)
	}
	return nil
}

// retryConflicts runs a transaction again that lost a conflict with another. If
// it goes on losing, the conflict is its failure like any other.
func (in *Inbox[Tx]) retryConflicts(ctx context.Context, transaction func() error) error {
	for retry := 1; ; retry++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := transaction()
		if !errors.Is(err, idempotency.ErrConflict) || isDecided(err) || retry > conflictRetries {
			return err
		}
		in.counters.retries.Add(1)
		wait(ctx, rand.N(conflictPause*time.Duration(retry)))
	}
}

// isDecided: running it again at once is not what the handler asked for, or would
// find its own commit and take it for somebody else's.
func isDecided(err error) bool {
	_, permanent := errors.AsType[*permanentError](err)
	_, retryAfter := errors.AsType[*retryAfterError](err)
	return permanent || retryAfter || mayBeCommitted(err)
}

// interruption returns the error that ends Process if err says nothing about
// the message: the context ended or the store failed. It spends no attempt.
func (in *Inbox[Tx]) interruption(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return fmt.Errorf("inbox: %w", err)
	case ctx.Err() != nil:
		return fmt.Errorf("inbox: %w: %w", ctx.Err(), err)
	case errors.Is(err, ErrHandlerTimeout):
		// The cancelled context may have cost the connection: not an outage.
		return nil
	case isOutage(err):
		return fmt.Errorf("inbox: %w", err)
	}
	return nil
}

func (in *Inbox[Tx]) fail(ctx context.Context, message *Message, result *Result, err error, pause time.Duration, attempts int) {
	*result = Result{Outcome: Failed, Err: err, RetryAfter: pause}
	in.report(ctx, Event{Kind: EventFailed, Message: *message, Count: 1, Attempts: attempts, Err: err})
}

// setAside writes the record and the dead letter of a message in one
// transaction, so that its redeliveries are duplicates.
func (in *Inbox[Tx]) setAside(ctx context.Context, message *Message, result *Result, reason Reason, cause error, attempts int) error {
	start := time.Now()
	claims := []idempotency.Claim{in.claim(message)}
	if reason == ReasonIDReused {
		claims[0] = in.asideClaim(string(reason), message, reusedKey(message))
	}
	letters := []DeadLetter{in.letter(message, reason, cause, attempts)}
	var verdict idempotency.Verdict
	err := in.retryConflicts(ctx, func() error {
		return in.store.Atomic(ctx, claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
			if verdict = verdicts[0]; verdict != idempotency.Fresh {
				return nil
			}
			in.unfinished.forget(claims[0], verdict)
			return in.store.AddDeadLetters(ctx, tx, letters)
		})
	})
	switch {
	case err != nil:
		if err := in.interruption(ctx, err); err != nil {
			return err
		}
		pause := in.backoffMax
		if errors.Is(err, idempotency.ErrInProgress) {
			pause = inProgressPause
		}
		in.fail(ctx, message, result, fmt.Errorf("%w (and setting it aside failed: %w)", cause, err), pause, attempts)
		return nil
	case verdict == idempotency.Reused:
		// Since the failure another process took the ID for another payload.
		return in.setAside(ctx, message, result, ReasonIDReused, errIDReused, attempts)
	case verdict == idempotency.Duplicate:
		if ended := in.unfinished.cause(claims[0]); ended != nil {
			// What could not be told a moment ago can be told now.
			if settled, err := in.settleUnfinished(ctx, message, result, ended); settled || err != nil {
				return err
			}
			in.fail(ctx, message, result, cause, inProgressPause, attempts)
			return nil
		}
		*result = Result{Outcome: Duplicate}
		in.reportDecision(ctx, message, decision{outcome: Duplicate}, time.Since(start))
		return nil
	}
	*result = Result{Outcome: Parked, Err: cause}
	in.report(ctx, Event{Kind: EventParked, Message: *message, Count: 1, Reason: reason, Attempts: attempts, Duration: time.Since(start), Err: cause})
	return nil
}

// backoff is the pause after the n-th failed attempt, with full jitter.
func (c *config) backoff(attempt int) time.Duration {
	ceiling := c.backoffMin
	for n := 1; n < attempt && ceiling < c.backoffMax; n++ {
		ceiling *= 2 // cannot overflow: the loop ends above backoffMax
	}
	return rand.N(min(ceiling, c.backoffMax)) + 1
}

// wait pauses for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
