package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestFailedMessageIsSetAsideAfterMaxAttempts(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.MaxAttempts(3))
	f.failOn(errHandler, "a")
	for range 2 {
		f.wantOutcomes(f.process(message("a")), "failed")
	}
	results := f.process(message("a"))
	f.wantOutcomes(results, "parked")
	wantError(t, results[0].Err, errHandler)
	f.wantLetters("a attempts")
	letter := f.store.letters[0]
	if letter.Attempts != 3 || !strings.Contains(letter.Error, errHandler.Error()) || string(letter.Message.Payload) != "payload of a" || letter.ParksKey {
		t.Errorf("dead letter is %+v", letter)
	}
	f.wantEffects()
}

func TestDeadMessageDeliveredAgainIsADuplicate(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.MaxAttempts(1))
	f.failOn(errHandler, "a")
	f.wantOutcomes(f.process(messages("a", "a", "b")...), "parked, duplicate, processed")
	f.wantLetters("a attempts")
}

func TestPermanentErrorIsSetAsideAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(3))
	f.failOn(fmt.Errorf("order: %w", inbox.Permanent(errHandler)), "b")
	results := f.process(messages("a", "b", "c")...)
	f.wantOutcomes(results, "processed, parked, processed")
	wantError(t, results[1].Err, errHandler)
	f.wantLetters("b permanent")
	if n := f.attempts("b"); n != 0 {
		t.Errorf("%d attempts counted", n)
	}
}

func TestNilErrorsStayNil(t *testing.T) {
	t.Parallel()
	if inbox.Permanent(nil) != nil || inbox.RetryAfter(nil, time.Second) != nil {
		t.Error("success became an error")
	}
}

func TestRetryAfterReplacesTheBackoffAndCountsAsAnAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.MaxAttempts(2))
	f.failOn(inbox.RetryAfter(errHandler, 42*time.Minute), "a")
	results := f.process(message("a"))
	f.wantOutcomes(results, "failed")
	if results[0].RetryAfter != 42*time.Minute {
		t.Errorf("retry after %v", results[0].RetryAfter)
	}
	f.wantOutcomes(f.process(message("a")), "parked")
}

func TestBackoffGrowsWithTheAttemptsUpToItsMaximum(t *testing.T) {
	t.Parallel()
	const minimum, maximum = time.Second, 5 * time.Second
	longest := map[int]time.Duration{}
	for range 60 {
		f := setup(t, inbox.Backoff(minimum, maximum), inbox.MaxAttempts(100))
		f.failOn(errHandler, "a")
		for attempt := 1; attempt <= 5; attempt++ {
			pause := f.process(message("a"))[0].RetryAfter
			if pause <= 0 || pause > min(minimum<<(attempt-1), maximum) {
				t.Fatalf("attempt %d: pause %v", attempt, pause)
			}
			longest[attempt] = max(longest[attempt], pause)
		}
	}
	for attempt, more := range map[int]time.Duration{2: minimum, 3: 2 * minimum, 4: 4 * minimum} {
		if longest[attempt] <= more {
			t.Errorf("attempt %d: longest pause of 60 is %v", attempt, longest[attempt])
		}
	}
}

// Every error that says nothing about the message.
func TestOutageSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{idempotency.ErrUnavailable, idempotency.ErrCommitUnknown, idempotency.ErrNotMigrated} {
		for _, batch := range []int{1, 2} {
			t.Run(fmt.Sprintf("%v in batches of %d", fault, batch), func(t *testing.T) {
				t.Parallel()
				f := setup(t, inbox.Batch(batch))
				f.store.beginFaults = []error{nil, fmt.Errorf("begin: %w", fault)}
				ms := messages("a", "b", "c", "d", "e", "f")
				results, err := f.inbox.Process(t.Context(), ms)
				wantError(t, err, fault)
				f.wantOutcomes(results[:batch], strings.TrimSuffix(strings.Repeat("processed, ", batch), ", "))
				f.wantOutcomes(results[batch:batch+1], "not run")
				if len(f.store.attempts) != 0 {
					t.Errorf("attempts %v", f.store.attempts)
				}
				if n := f.inbox.Stats().Outages; n != 1 {
					t.Errorf("%d outages", n)
				}
				f.process(ms...)
				f.wantEffects("a", "b", "c", "d", "e", "f")
			})
		}
	}
}

func TestUnknownCommitIsDecidedByTheNextClaim(t *testing.T) {
	t.Parallel()
	for committed, then := range map[bool]string{true: "duplicate", false: "processed"} {
		t.Run(fmt.Sprintf("committed=%v", committed), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.store.commitFaults = []commitFault{{idempotency.ErrCommitUnknown, committed}}
			results, err := f.inbox.Process(t.Context(), messages("a", "b"))
			wantError(t, err, idempotency.ErrCommitUnknown)
			f.wantOutcomes(results, "not run, not run")
			f.wantOutcomes(f.process(messages("a", "b")...), then+", processed")
			f.wantEffects("a", "b")
		})
	}
}

func TestConflictIsRunAgainAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(2))
	f.store.commitFaults = []commitFault{{err: idempotency.ErrConflict}, {err: idempotency.ErrConflict}}
	f.wantOutcomes(f.process(messages("a", "b")...), "processed, processed")
	f.wantCalls("a", "b", "a", "b", "a", "b")
	f.wantEffects("a", "b")
	if n := f.inbox.Stats().Retries; n != 2 {
		t.Errorf("%d retries", n)
	}
}

func TestConflictThatDoesNotEndIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 2} {
		f := setup(t, inbox.MaxAttempts(2), inbox.Batch(batch))
		handlers := func(_ context.Context, _ *fakeTx, m inbox.Message) error {
			if m.ID == "a" {
				return fmt.Errorf("own table: %w", idempotency.ErrConflict)
			}
			return nil
		}
		f.on = handlers
		results := f.process(messages("a", "b")...)
		f.wantOutcomes(results, "failed, not run")
		wantError(t, results[0].Err, idempotency.ErrConflict)
		if n := f.attempts("a"); n != 1 || results[0].RetryAfter <= 0 {
			t.Errorf("%d attempts, %+v", n, results[0])
		}
		f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
		f.wantLetters("a attempts")
		f.wantEvents(inbox.EventOutage, 0)
	}
}

func TestConflictOfTheStoreThatDoesNotEndIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 6 {
		f.store.commitFaults = append(f.store.commitFaults, commitFault{err: idempotency.ErrConflict})
	}
	f.wantOutcomes(f.process(messages("a")...), "failed")
	if len(f.store.commitFaults) != 0 || f.attempts("a") != 1 {
		t.Errorf("%d faults left, %d attempts", len(f.store.commitFaults), f.attempts("a"))
	}
	f.wantOutcomes(f.process(messages("a")...), "processed")
}

// The handler's own word on an error is stronger than a sentinel in it.
func TestMarkedErrorIsNotRunAgainNorTakenForAnOutage(t *testing.T) {
	t.Parallel()
	for _, sentinel := range []error{
		idempotency.ErrConflict, idempotency.ErrUnavailable, idempotency.ErrInProgress, idempotency.ErrCommitUnknown, idempotency.ErrNotMigrated,
	} {
		f := setup(t)
		f.failOn(inbox.Permanent(sentinel), "a")
		f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
		f.wantLetters("a permanent")
		f.wantCalls("a", "b")
	}
	f := setup(t)
	f.failOn(inbox.RetryAfter(idempotency.ErrConflict, time.Hour), "a")
	results := f.process(messages("a")...)
	f.wantOutcomes(results, "failed")
	f.wantCalls("a")
	if results[0].RetryAfter != time.Hour {
		t.Errorf("%+v", results[0])
	}
}

func TestOutageUnderAPermanentErrorIsAnOutage(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.on = func(_ context.Context, tx *fakeTx, _ inbox.Message) error {
		tx.sever()
		return inbox.Permanent(errConnection)
	}
	_, err := f.inbox.Process(t.Context(), messages("a"))
	wantError(t, err, idempotency.ErrUnavailable)
	f.wantLetters()
}

// Or a handler that uses another inbox would hold up its partition for ever.
func TestHandlerThatReturnsInProgressFailsItsAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.MaxAttempts(2))
	f.failOn(idempotency.ErrInProgress, "a")
	f.wantOutcomes(f.process(messages("a")...), "failed")
	f.wantOutcomes(f.process(messages("a")...), "parked")
}

func TestClaimInProgressElsewhereWaitsAndSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(2), inbox.MaxAttempts(1))
	release := make(chan struct{})
	inside := make(chan struct{})
	slow := inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error {
		close(inside)
		<-release
		return tx.Do(m.ID)
	})
	done := make(chan error)
	go func() {
		_, err := slow.Process(t.Context(), messages("b"))
		done <- err
	}()
	<-inside
	results := f.process(messages("a", "b", "c", "d")...)
	f.wantOutcomes(results, "processed, failed, not run, not run")
	wantError(t, results[1].Err, idempotency.ErrInProgress)
	if results[1].RetryAfter != time.Second || f.attempts("b") != 0 {
		t.Errorf("%v, %d attempts", results[1], f.attempts("b"))
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.wantOutcomes(f.process(messages("b")...), "duplicate")
}

func TestEndedContextRunsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := f.inbox.Process(ctx, messages("a"))
	wantError(t, err, context.Canceled)
	f.wantOutcomes(results, "not run")
	f.wantCalls()
}

func TestEndedContextKeepsWhatWasDecided(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if m.ID == "b" {
			cancel() // and the handler finishes its work nevertheless
		}
		return nil
	}
	results, err := f.inbox.Process(ctx, messages("a", "b", "c"))
	wantError(t, err, context.Canceled)
	f.wantOutcomes(results, "processed, processed, not run")
	f.wantEffects("a", "b")
	f.wantEvents(inbox.EventOutage, 0)
}

func TestHandlerThatFailsBecauseTheContextEndedSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 2} {
		f := setup(t, inbox.Batch(batch))
		ctx, cancel := context.WithCancelCause(t.Context())
		lost := errors.New("partition was taken away")
		f.on = func(ctx context.Context, _ *fakeTx, _ inbox.Message) error {
			cancel(lost)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lost) {
				t.Errorf("cause is %v", context.Cause(ctx))
			}
			return ctx.Err()
		}
		results, err := f.inbox.Process(ctx, messages("a", "b"))
		wantError(t, err, context.Canceled)
		f.wantOutcomes(results, "not run, not run")
		f.wantCalls("a")
		f.wantEffects()
		if len(f.store.attempts) != 0 {
			t.Errorf("attempts %v", f.store.attempts)
		}
	}
}

func TestOutageWhileCountingTheAttemptSpendsNone(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn(errHandler, "a")
	f.store.countFaults = []error{idempotency.ErrUnavailable}
	results, err := f.inbox.Process(t.Context(), messages("a", "b"))
	wantError(t, err, idempotency.ErrUnavailable)
	f.wantOutcomes(results, "not run, not run")
}

func TestFailureToCountLeavesTheMessageFailed(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Backoff(time.Second, time.Minute))
	f.failOn(errHandler, "a")
	refused := errors.New("disk is full")
	f.store.countFaults = []error{refused}
	results := f.process(messages("a", "b")...)
	f.wantOutcomes(results, "failed, not run")
	wantError(t, results[0].Err, errHandler)
	wantError(t, results[0].Err, refused)
	if results[0].RetryAfter != time.Minute {
		t.Errorf("retry after %v", results[0].RetryAfter)
	}
}

func TestFailureToSetAsideLosesNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn(inbox.Permanent(errHandler), "a")

	f.store.beginFaults = []error{nil, idempotency.ErrUnavailable}
	results, err := f.inbox.Process(t.Context(), messages("a", "b"))
	wantError(t, err, idempotency.ErrUnavailable)
	f.wantOutcomes(results, "not run, not run")

	refused := errors.New("payload is too large")
	f.store.beginFaults = []error{nil, refused}
	results = f.process(messages("a", "b")...)
	f.wantOutcomes(results, "failed, not run")
	wantError(t, results[0].Err, refused)

	f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
}

func TestMessageThatAnotherProcessHandledAfterTheFailureIsADuplicate(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]struct {
		outcome string
		letters []string
	}{
		"payload of a": {"duplicate", nil},
		"another one":  {"parked", []string{"a id_reused"}},
	} {
		t.Run(payload, func(t *testing.T) {
			t.Parallel()
			f := setup(t, inbox.FingerprintPayload())
			healthy := inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error {
				return tx.Do(m.ID)
			}, inbox.FingerprintPayload())
			f.failOn(inbox.Permanent(errHandler), "a")
			f.store.onRollback = func() {
				other := message("a")
				other.Payload = []byte(payload)
				if _, err := healthy.Process(t.Context(), []inbox.Message{other}); err != nil {
					t.Error(err)
				}
			}
			f.wantOutcomes(f.process(message("a")), want.outcome)
			f.wantLetters(want.letters...)
		})
	}
}
