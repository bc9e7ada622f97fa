package inbox

import (
	"context"
	"time"
)

// Processor is an Inbox as a broker adapter sees it: with the handler bound
// and the transaction type gone. *Inbox implements it.
type Processor interface {
	// Check reports a configuration that cannot work, a store that cannot be
	// reached and a store that was not migrated. Adapters call it first.
	Check(ctx context.Context) error

	// Process handles messages in the order given and returns one Result for
	// each, in the same order. It stops at the first Failed one, because the
	// messages behind it may depend on it: those are NotRun.
	//
	// An error means that the store is unreachable or ctx has ended. The
	// results still say what was decided before; the rest is NotRun. Nothing
	// was lost and no attempt was spent: call again when the cause has gone.
	//
	// Process may be called from many goroutines. It blocks for as long as
	// the handlers run. The messages are lent: an adapter may use the arrays of
	// their bytes again once they are settled, so what is kept is copied.
	Process(ctx context.Context, messages []Message) ([]Result, error)

	// Maintain prunes expired records until ctx ends, then returns. Run it
	// beside Process, in as many processes as you like: one at a time works.
	Maintain(ctx context.Context)
}

// Outcome is what became of one message.
type Outcome uint8

const (
	// NotRun: nothing was decided; deliver the message again.
	NotRun Outcome = iota
	// Processed: the handler's effects are committed.
	Processed
	// Duplicate: they were committed before. Settle it like Processed.
	Duplicate
	// Parked: it is set aside as a dead letter, or behind one with the same
	// key. It is safe in the store: settle it like Processed.
	Parked
	// Failed: rolled back; deliver it again after Result.RetryAfter.
	Failed
)

func (o Outcome) String() string {
	switch o {
	case NotRun:
		return "not run"
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case Parked:
		return "parked"
	case Failed:
		return "failed"
	}
	return "unknown outcome"
}

// Result is the outcome of one message.
type Result struct {
	Outcome Outcome

	// Err is why the message was Parked or Failed.
	Err error

	// RetryAfter is how long a Failed message should wait. Zero: at once.
	RetryAfter time.Duration
}

// Settled reports whether the broker may forget the message: acknowledge it,
// delete it, move its offset on.
func (r Result) Settled() bool {
	return r.Outcome == Processed || r.Outcome == Duplicate || r.Outcome == Parked
}
