package outbox

import (
	"context"
	"errors"
)

// Publisher sends events to a broker. Implementations are safe for concurrent use.
// One that has a method Validate() error, as kafka.Publisher has, tells there what is wrong
// with its configuration: Relay.Run and Relay.Check return that at once, where an error of
// Publish would be tried again.
type Publisher interface {
	// Publish sends events and returns when each has its result: one error
	// for each event, in their order, nil where the broker has acknowledged.
	//
	// Events with the same topic and key stand in the order in which they
	// must be published. If one fails, the later ones of its key in the same
	// call are not sent, and fail as well (with ErrBehind).
	//
	// An event whose outcome is unknown (a timeout, a lost connection, an
	// ended context) has failed with ErrUnavailable: it is sent again, with
	// the same ID. Publish returns soon after ctx has ended. It must not keep
	// or change events.
	Publish(ctx context.Context, events []Event) []error
}

// validator knows without asking anybody whether it can ever work.
type validator interface{ Validate() error }

// Errors of a Publisher. Wrap them, with what the broker said.
var (
	// ErrUnavailable: the destination cannot be reached, is overloaded, or
	// did not answer. It says nothing about the event and spends no attempt.
	ErrUnavailable = errors.New("destination is unavailable")

	// ErrPermanent: no other try can help, as with an event that is too large
	// for the broker. It becomes a dead letter at once.
	ErrPermanent = errors.New("never to be accepted")

	// ErrBehind: not sent, because an earlier event of the same key failed in
	// this call. It spends no attempt.
	ErrBehind = errors.New("behind an event that failed")
)
