package inbox

import (
	"context"
	"sync/atomic"
	"time"
)

// series is one or more whole transactions in the store, one after another: the
// batches of a Process, the dead letter of a Redrive. It ends with the first that
// fails. Before each it calls watch.begin.
type series interface {
	transact(ctx context.Context, watch *watch) error
}

// watch is what the call of a series and the goroutine it runs in share.
type watch struct {
	caller  context.Context //nolint:containedctx // The one of the call.
	current atomic.Pointer[transaction]
}

// begin says which transaction is watched from now on. An error means not to begin
// it, because the caller's context has ended. It looks at that last: whichever of
// the two goroutines sees the end, it sees it with this transaction.
func (w *watch) begin(t *transaction) error {
	w.current.Store(t)
	if w.caller.Err() != nil {
		return context.Cause(w.caller)
	}
	return nil
}

// run runs a series in a goroutine of its own, so that a handler that never returns
// can be left behind in it, and watches it until it has ended or its handler is
// abandoned. The goroutine of an abandoned handler ends when that returns, and
// touches nothing of the call any more; one that its handler ends is errGoexit.
//
// One goroutine for the whole series, since to hand over each transaction would
// cost more than what it is watched for.
func (in *Inbox[Tx]) run(ctx context.Context, s series) error {
	w := &watch{caller: ctx}
	// The end of the caller's context must reach the handler before it reaches
	// the store, which would cut the connection under a handler about to finish.
	inner, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	outcome := make(chan error, 1) // With room for one: nobody may wait for an abandoned one.
	go func() {
		err := errGoexit
		defer func() {
			stop(nil)
			outcome <- err
		}()
		err = s.transact(inner, w)
	}()
	return in.wait(ctx, w, outcome, stop)
}

// wait returns the outcome of a series. It must see every change of phase in time
// only while a handler runs, so it looks when a timer says that one may be due: no
// handler can be overdue sooner than HandlerTimeout after the last look.
func (in *Inbox[Tx]) wait(ctx context.Context, w *watch, outcome <-chan error, stop context.CancelCauseFunc) error {
	timer := time.NewTimer(in.handlerTimeout)
	defer timer.Stop()
	ended := ctx.Done()
	for {
		select {
		case err := <-outcome:
			return err
		case <-ended:
			ended = nil
		case <-timer.C:
		}
		again := in.handlerTimeout
		if t := w.current.Load(); t != nil {
			due, err := t.inspect(ctx, stop, in.handlerTimeout)
			if err != nil {
				in.report(ctx, Event{Kind: EventAbandoned, Message: *t.message, Count: 1, Duration: time.Since(t.began), Err: err})
				return err
			}
			again = min(again, due)
		}
		timer.Reset(again)
	}
}
