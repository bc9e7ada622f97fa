package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// batches is the series of a Process: messages, in transactions of size messages.
type batches[Tx any] struct {
	in       *Inbox[Tx]
	size     int
	messages []Message
	results  []Result

	// done counts the messages that are committed, whose results are filled and
	// reported. The rest is untouched.
	done int
	// batch is the one at work, or the one that failed; nil: none. began is when
	// the first try at it did.
	batch *batch[Tx]
	began time.Time
	// scoped is that of the last message.
	scoped scoped
}

// runBatches runs messages up to the first batch that fails.
func (in *Inbox[Tx]) runBatches(ctx context.Context, size int, messages []Message, results []Result) (*batches[Tx], error) {
	s := &batches[Tx]{in: in, size: size, messages: messages, results: results, began: time.Now()}
	err := in.run(ctx, s)
	if errors.Is(err, idempotency.ErrTransactionEnded) {
		err = endedError(err)
	}
	// Of a handler that was abandoned because ctx ended, another process may
	// handle the message next; that it had committed is far less likely.
	if err != nil && s.batch != nil && mayBeCommitted(err) && (ctx.Err() == nil || errors.Is(err, idempotency.ErrTransactionEnded)) {
		s.batch.rememberUnfinished(err)
	}
	return s, err
}

// transact implements series.
func (s *batches[Tx]) transact(ctx context.Context, watch *watch) error {
	for s.done < len(s.messages) {
		s.batch, s.began = nil, time.Now()
		if err := s.in.retryConflicts(watch.caller, func() error { return s.try(ctx, watch) }); err != nil {
			return err
		}
		s.settle(watch.caller)
	}
	return nil
}

// try runs the next batch in one transaction. An abandoned handler keeps the batch
// it belongs to, so each try gets a new one.
func (s *batches[Tx]) try(ctx context.Context, watch *watch) error {
	b := s.in.newBatch(s.began, s.messages[s.done:min(s.done+s.size, len(s.messages))], &s.scoped)
	s.batch = b
	if err := watch.begin(&b.transaction); err != nil {
		return err
	}
	return s.in.store.Atomic(ctx, b.claims, b.run)
}

// settle fills and reports the results of a batch that was committed.
func (s *batches[Tx]) settle(ctx context.Context) {
	took := time.Since(s.began)
	for _, d := range s.batch.decisions {
		m := &s.messages[s.done]
		s.results[s.done] = Result{Outcome: d.outcome, Err: d.cause(m)}
		s.in.reportDecision(ctx, m, d, took)
		s.done++
	}
	s.in.noteStore(ctx, s.began, nil)
}
