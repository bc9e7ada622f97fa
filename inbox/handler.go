package inbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/internal/panicvalue"
)

// Handler does the work of one message on tx, the transaction that also holds
// the claim: when it returns nil, both are committed together; when it returns an
// error or panics, both are rolled back.
//
// Each call gets a copy of the message, which it may change.
//
// It must not commit or roll back tx, nor use it after returning; see the package
// documentation for what becomes of its message otherwise. When ctx ends it should
// return soon; see HandlerTimeout.
type Handler[Tx any] func(ctx context.Context, tx Tx, message Message) error

// BulkHandler does the work of several messages in one call: all new messages
// of a batch, in order, never none. Everything said about Handler holds. After an
// error it is called again with one message at a time, so that the bad one fails alone.
type BulkHandler[Tx any] func(ctx context.Context, tx Tx, messages []Message) error

// ErrHandlerTimeout is in the cause of the handler's context after HandlerTimeout,
// which says how long that is; see context.Cause.
var ErrHandlerTimeout = errors.New("handler ran past its HandlerTimeout")

// Permanent marks an error that no retry will cure: the message is set aside at
// once, even if the error is one of idempotency's, which would otherwise be tried
// again. Only when the inbox's own store is out does the message wait, and the
// handler is asked again. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// RetryAfter replaces the backoff of this failure by a pause of the handler's
// choice, such as the one a remote service asked for. The failure still counts
// as an attempt. RetryAfter(nil, …) is nil; a negative pause is none.
func RetryAfter(err error, pause time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(pause, 0)}
}

type retryAfterError struct {
	err   error
	pause time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// PanicError is the failure of a handler that panicked, or returned an error whose
// methods panic, as those of a nil pointer do; or of Identity.Missing.
type PanicError struct {
	// Value is what it panicked with.
	Value any
	// Stack is the stack of the panicking goroutine.
	Stack []byte

	who string // "": the handler
}

func (e *PanicError) Error() string {
	return cmp.Or(e.who, "handler") + " panicked: " + panicvalue.Text(e.Value)
}

// Unwrap returns Value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

var errGoexit = errors.New("handler ended its goroutine with runtime.Goexit (t.FailNow does that too): return an error instead")
