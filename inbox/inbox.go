package inbox

import (
	"context"
	"errors"

	"github.com/onceward/onceward/internal/userlog"
)

// Inbox handles each message once: the handler's writes, the record that the
// message was handled and, if it comes to that, its dead letter share one
// transaction of the store. It implements Processor.
//
// An Inbox is safe for concurrent use and owns no goroutine between calls.
type Inbox[Tx any] struct {
	config

	store   Store[Tx]
	handler Handler[Tx]
	bulk    BulkHandler[Tx]

	invalid    error
	counters   counters
	outage     outage
	unfinished unfinished
}

// New returns an inbox that calls handler once for every new message.
//
// consumer names the logical reader and must match [A-Za-z0-9._-]{1,100}. Two
// consumers of one message are independent; renaming one makes it handle everything
// that it is delivered again. A bad argument or option is reported by Check and
// by every Process.
func New[Tx any](store Store[Tx], consumer string, handler Handler[Tx], options ...Option) *Inbox[Tx] {
	in := newInbox(store, consumer, handler != nil, options)
	in.handler = handler
	return in
}

// NewBulk is New for a handler that takes all new messages of a batch in one
// call, for work that is cheaper in bulk. It is of use together with Batch.
func NewBulk[Tx any](store Store[Tx], consumer string, handler BulkHandler[Tx], options ...Option) *Inbox[Tx] {
	in := newInbox(store, consumer, handler != nil, options)
	in.bulk = handler
	return in
}

func newInbox[Tx any](store Store[Tx], consumer string, hasHandler bool, options []Option) *Inbox[Tx] {
	in := &Inbox[Tx]{config: newConfig(consumer, options), store: store}
	in.logger = userlog.Guard(in.logger, func() { in.counters.reportPanics.Add(1) })
	in.invalid = in.validate(store != nil, hasHandler)
	return in
}

var errNotMade = errors.New("inbox: this *Inbox is nil or empty: make it with inbox.New")

// unusable returns why nothing can be done with an inbox, which may be nil inside
// a Processor that is not.
func (in *Inbox[Tx]) unusable() error {
	if in == nil || in.store == nil && in.invalid == nil {
		return errNotMade
	}
	return in.invalid
}

// Check implements Processor.
func (in *Inbox[Tx]) Check(ctx context.Context) error {
	if err := in.unusable(); err != nil {
		return err
	}
	return in.store.Check(ctx)
}
