package inbox

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/onceward/onceward/internal/panicvalue"
)

// handlerError is what a handler returned, apart from what the store adds to it.
//
// The methods of that error are code of the user as well, and they may panic: those
// of a nil pointer that was returned as an error mostly do. They are called on the
// goroutine of whoever looks at the error, so they are called through this type
// only, which keeps the text and answers for the rest.
type handlerError struct {
	err  error
	text string
}

// newHandlerError asks the error once for all it can be asked for. One that panics
// then is a PanicError.
func newHandlerError(err error) (failure *handlerError) {
	defer func() {
		if value := recover(); value != nil {
			panicked := &PanicError{
				Value: fmt.Sprintf("the error that it returned, a %T, can't be read; is it a nil pointer? %s", err, panicvalue.Text(value)),
				Stack: debug.Stack(),
			}
			failure = &handlerError{panicked, panicked.Error()}
		}
	}()
	failure = &handlerError{err, err.Error()}
	_ = errors.Is(err, failure) // it is not, so every error it wraps is asked
	_, _ = errors.AsType[*handlerError](err)
	return failure
}

func (e *handlerError) Error() string { return e.text }

// Is and As stand in place of Unwrap, which would let the caller out of here.
func (e *handlerError) Is(target error) bool { return safelyIs(e.err, target) }

func (e *handlerError) As(target any) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.As(e.err, target)
}

// safelyIs is errors.Is, and false if a method of err panics.
func safelyIs(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}
