package outbox

import "errors"

// publisherError is what a publisher returned. Its methods are code of the user and
// may panic, on the goroutine of whoever looks at the error: they are called
// through this type only, which keeps the text and answers for the rest.
type publisherError struct {
	err  error
	text string
}

func (e *publisherError) Error() string { return e.text }

// Is and As stand in place of Unwrap, which would let the caller out of here.
func (e *publisherError) Is(target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(e.err, target)
}

func (e *publisherError) As(target any) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.As(e.err, target)
}
