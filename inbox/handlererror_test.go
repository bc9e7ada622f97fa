package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// codeError is an error of a user; a nil one can't be read.
type codeError struct{ code int }

func (e *codeError) Error() string { return fmt.Sprint("code ", e.code) }

type panicsInError string

func (panicsInError) Error() string { return "text" }

func (e panicsInError) Is(error) bool {
	if e == "Is" {
		panic("Is")
	}
	return false
}

func (e panicsInError) As(any) bool {
	if e == "As" {
		panic("As")
	}
	return false
}

func (e panicsInError) Unwrap() error {
	if e == "Unwrap" {
		panic("Unwrap")
	}
	return nil
}

func TestErrorWhoseMethodsPanicIsThePanicOfItsHandler(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"nil pointer":           (*codeError)(nil),
		"Is":                    panicsInError("Is"),
		"As":                    panicsInError("As"),
		"Unwrap":                panicsInError("Unwrap"),
		"wrapped":               fmt.Errorf("booking: %w", panicsInError("Unwrap")),
		"permanent nil pointer": inbox.Permanent((*codeError)(nil)),
		"retried nil pointer":   inbox.RetryAfter((*codeError)(nil), 0),
	} {
		f := setup(t, inbox.MaxAttempts(2), inbox.Batch(2))
		f.failOn(err, "a")
		results := f.process(messages("a", "b")...)
		f.wantOutcomes(results, "failed, not run")
		if _, ok := errors.AsType[*inbox.PanicError](results[0].Err); !ok {
			t.Errorf("%s: error is %v", name, results[0].Err)
		}
		f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
		f.wantLetters("a attempts")
		f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Failed: 1})
	}
}

func TestNilPointerReturnedAsAnErrorIsNamed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn((*codeError)(nil), "a")
	text := f.process(message("a"))[0].Err.Error()
	if !strings.Contains(text, "*inbox_test.codeError") || !strings.Contains(text, "nil pointer") {
		t.Errorf("error is %q", text)
	}
}

// askedError panics when it is asked whether it is an outage.
type askedError struct{}

func (askedError) Error() string { return "text" }

func (askedError) Is(target error) bool {
	if target == idempotency.ErrUnavailable {
		panic("asked")
	}
	return false
}

func TestErrorThatPanicsNowAndThenIsAnErrorLikeAnyOther(t *testing.T) {
	t.Parallel()
	for _, err := range []error{askedError{}, inbox.Permanent(askedError{})} {
		f := setup(t, inbox.MaxAttempts(1))
		f.failOn(err, "a")
		f.wantOutcomes(f.process(message("a")), "parked")
	}
}

func TestResultsTellTheErrorOfTheHandler(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.on = func(context.Context, *fakeTx, inbox.Message) error { return fmt.Errorf("booking: %w", &codeError{7}) }
	err := f.process(message("a"))[0].Err
	if code, ok := errors.AsType[*codeError](err); !ok || code.code != 7 || !strings.HasSuffix(err.Error(), "booking: code 7") {
		t.Errorf("error is %v", err)
	}
}

// A handler that feeds another inbox may return the error of its result. That the other one knows the ID of its message
// says nothing of this one's, which would be set aside without a record, and be handled once more in a redrive.
func TestReusedIDInAnotherInboxIsAnErrorLikeAnyOther(t *testing.T) {
	t.Parallel()
	another := setup(t, inbox.FingerprintPayload())
	another.process(message("x"))
	reused := another.process(inbox.Message{ID: "x", Source: "orders", Topic: "orders"})
	another.wantOutcomes(reused, "parked")

	f := setup(t)
	f.failOn(reused[0].Err, "a")
	f.wantOutcomes(f.process(message("a")), "failed")
	f.wantLetters()
	f.on = nil
	f.wantOutcomes(f.process(messages("a", "a")...), "processed, duplicate")
	f.wantEffects("a")
}
