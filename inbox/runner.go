package inbox

import (
	"context"
	"time"
)

// runner runs the transactions of one call of Process or Redrive, one after
// another. Their worker and timer are made once a call, not once a transaction.
type runner struct {
	timeout time.Duration
	timer   *time.Timer
	worker  *worker // nil: the next transaction starts one
	// last: no transaction is expected after the next one, whose worker then ends
	// by itself, or a call with one message would wait for it twice.
	last bool
}

// work is one whole transaction in the store: the batch of a Process, the dead
// letter of a Redrive.
type work interface {
	transact(ctx context.Context) error
}

// worker is a goroutine that runs transactions, so that a handler that never
// returns can be left behind in it. It ends with the call it works for, or with
// a handler that ends its goroutine: that can't be stopped. One whose handler was
// abandoned ends when that returns, and touches nothing of the call any more.
type worker struct {
	queue chan task
	// outcome receives the outcome of each transaction, and is closed at the end.
	outcome chan error
	// end is the outcome of a transaction the worker ended with; valid once
	// outcome is closed.
	end error
	// stop cancels the transactions' context.
	stop context.CancelCauseFunc
}

type task struct {
	work

	last bool
}

// startWorker starts a worker with its first task.
func startWorker(ctx context.Context, first task) *worker {
	// The end of the caller's context must reach the handler before it reaches
	// the store, which would cut the connection under a handler about to finish.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	// With room for one, nobody waits: neither the call for a worker that has just
	// begun, nor an abandoned one for a call that has gone.
	w := &worker{queue: make(chan task, 1), outcome: make(chan error, 1), end: errGoexit, stop: stop}
	w.queue <- first
	go w.run(ctx)
	return w
}

func (w *worker) run(ctx context.Context) {
	defer close(w.outcome)
	defer w.stop(nil)
	for next := range w.queue {
		err := next.transact(ctx)
		if next.last {
			w.end = err
			return
		}
		w.outcome <- err
	}
}

// run runs one transaction, watched as t, until it has ended or its handler is
// abandoned. All transactions of a runner have the same ctx.
func (r *runner) run(ctx context.Context, t *transaction, w work) error {
	if r.timer == nil {
		r.timer = time.NewTimer(r.timeout)
	} else {
		r.timer.Reset(r.timeout)
	}
	if next := (task{w, r.last}); r.worker == nil {
		r.worker = startWorker(ctx, next)
	} else {
		r.worker.queue <- next
	}
	return r.wait(ctx, t)
}

// wait returns the outcome of the transaction. It must see every change of
// phase in time only while a handler runs, so it looks when a timer says that
// one may be due.
func (r *runner) wait(ctx context.Context, t *transaction) error {
	ended := ctx.Done()
	for {
		select {
		case err, alive := <-r.worker.outcome:
			if !alive {
				err, r.worker = r.worker.end, nil
			}
			return err
		case <-ended:
			ended = nil
		case <-r.timer.C:
		}
		again, err := t.inspect(ctx, r.worker.stop, r.timeout)
		if err != nil {
			close(r.worker.queue)
			r.worker = nil
			return err
		}
		r.timer.Reset(again)
	}
}

// close ends the worker and waits for it; it has nothing to do any more.
func (r *runner) close() {
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.worker != nil {
		close(r.worker.queue)
		for range r.worker.outcome { // until it is closed
		}
	}
}

// run runs one transaction and reports a handler that was abandoned.
func (in *Inbox[Tx]) run(ctx context.Context, r *runner, t *transaction, w work) error {
	start := time.Now()
	err := r.run(ctx, t, w)
	if t.abandoned != nil { // set by this goroutine, in inspect
		in.report(ctx, Event{Kind: EventAbandoned, Message: t.abandoned.message, Count: 1, Duration: time.Since(start), Err: err})
	}
	return err
}
