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
	for next := 0; next < len(messages); {
		s, err := in.runBatches(ctx, in.batch, messages[next:], results[next:])
		if err == nil {
			break
		}
		next += s.done
		end := min(next+in.batch, len(messages))
		ok, err := in.batchFailed(ctx, messages[next:end], results[next:end], err)
		in.noteStore(ctx, s.began, err)
		if !ok || err != nil {
			return results, err
		}
		next = end
	}
	return results, nil
}

// batchFailed runs messages that failed in one transaction one by one, up to the
// first that fails alone. Then ok is false. One message is not run again.
func (in *Inbox[Tx]) batchFailed(ctx context.Context, messages []Message, results []Result, cause error) (ok bool, err error) {
	if len(messages) == 1 {
		err := in.messageFailed(ctx, &messages[0], &results[0], cause)
		return results[0].Outcome != Failed, err
	}
	if err := in.interruption(ctx, cause); err != nil {
		return false, err
	}
	if errors.Is(cause, idempotency.ErrTransactionEnded) {
		// Which message's handler did it is not known, and none may fail for it.
		in.report(ctx, Event{Kind: EventFailed, Count: 1, Err: cause})
	}
	in.counters.retries.Add(1)
	for next := 0; next < len(messages); next++ {
		s, err := in.runBatches(ctx, 1, messages[next:], results[next:])
		if err == nil {
			break
		}
		next += s.done
		if err := in.messageFailed(ctx, &messages[next], &results[next], err); err != nil || results[next].Outcome == Failed {
			return false, err
		}
	}
	return true, nil
}

// messageFailed applies the failure policy to a message that failed in a
// transaction of its own. The result tells whether that settled it.
func (in *Inbox[Tx]) messageFailed(ctx context.Context, message *Message, result *Result, err error) error {
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
	case errors.Is(err, errIDReused) && !handlers: // a handler has it from another inbox
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
