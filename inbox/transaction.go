package inbox

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// grace is how long a handler may take to return once its context is cancelled.
const grace = time.Second

// transaction is what is known of one transaction of the store while it is watched:
// see Inbox.run.
//
//	storing ──enter──▶ handling ──leave──▶ storing … ──finish──▶ committing
//	   │                  │ HandlerTimeout or ctx ended: handler's ctx cancelled
//	   │ ctx ended        │ a second later, still handling: abandoned
//	   └────────▶ stopped ◀────────┘
//
// Stopped means that the series' context is cancelled: the store rolls the
// transaction back even while the handler runs on. From committing on nothing
// interferes, so that a commit is never made uncertain for the sake of a second.
//
// An abandoned series finds out in leave and touches nothing but its own
// transaction afterwards; that is why a transaction's working memory is never reused.
type transaction struct {
	began time.Time

	mu        sync.Mutex
	phase     phase
	entered   time.Time // when the running call of the handler began
	message   *Message  // what it was called with, the first one in bulk
	told      time.Time // when its context was cancelled; zero: not yet
	why       error     // why it was cancelled
	overdue   bool      // it was because of this inbox's HandlerTimeout
	cancel    context.CancelCauseFunc
	succeeded int // calls of the handler that returned nil
	abandoned *abandonedError
}

type phase uint8

const (
	storing phase = iota
	handling
	committing
)

// inspect cancels what is overdue and says when to look again. An error means
// that the handler was abandoned.
func (t *transaction) inspect(ctx context.Context, stop context.CancelCauseFunc, timeout time.Duration) (again time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	ended := ctx.Err() != nil
	if t.phase != handling {
		if t.phase == storing && ended {
			t.tell(now, context.Cause(ctx))
			stop(t.why)
		}
		return timeout, nil
	}
	if t.told.IsZero() {
		switch due := t.entered.Add(timeout).Sub(now); {
		case ended:
			t.tell(now, context.Cause(ctx))
		case due <= 0:
			t.overdue = true
			t.tell(now, fmt.Errorf("%w of %v", ErrHandlerTimeout, timeout))
		default:
			return due, nil
		}
		return grace, nil
	}
	if due := t.told.Add(grace).Sub(now); due > 0 {
		return due, nil
	}
	t.abandoned = &abandonedError{t.why}
	stop(t.why)
	return 0, t.abandoned
}

func (t *transaction) tell(now time.Time, why error) {
	t.told, t.why = now, why
	if t.cancel != nil {
		t.cancel(why)
	}
}

// handlerContext returns the context for the handlers of this transaction.
func (t *transaction) handlerContext(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel = cancel
	if !t.told.IsZero() {
		cancel(t.why)
	}
	return ctx, cancel
}

// enter is called before each call of a handler; an error means not to call.
func (t *transaction) enter(m *Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.told.IsZero() {
		return t.why
	}
	t.phase, t.entered, t.message = handling, time.Now(), m
	return nil
}

// leave is deferred around each call of a handler. If the handler ends its
// goroutine, err is still what it was before the call.
func (t *transaction) leave(err *error) {
	if value := recover(); value != nil {
		*err = &PanicError{Value: value, Stack: debug.Stack()}
	}
	var failure *handlerError
	if *err != nil {
		failure = newHandlerError(*err) // while a hung method of it still counts as the handler
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = storing
	switch {
	case t.abandoned != nil:
		*err = t.abandoned // also if the handler succeeded late: nothing more is done here
	case *err == nil:
		t.succeeded++
	case t.overdue:
		*err = fmt.Errorf("%w: %w", t.why, failure)
	default:
		*err = failure
	}
}

// progress returns how many calls of the handler succeeded.
func (t *transaction) progress() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.succeeded
}

// finish is the last thing that happens before the commit.
func (t *transaction) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = committing
}

// abandonedError is the failure of a handler that was left behind. It outlives
// Process, and so holds nothing of the message, which was lent.
type abandonedError struct{ why error }

func (e *abandonedError) Error() string {
	return fmt.Sprintf("%v, and it did not return within %v of being told: its goroutine was left behind", e.why, grace)
}

func (e *abandonedError) Unwrap() error { return e.why }
