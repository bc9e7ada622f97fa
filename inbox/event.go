package inbox

import (
	"context"
	"log/slog"
	"time"
)

// EventKind names something an inbox or adapter did without anybody asking.
type EventKind string

// Events of an Inbox. Adapters add their own kinds and document them.
const (
	EventProcessed EventKind = "processed"
	EventDuplicate EventKind = "duplicate"
	EventParked    EventKind = "parked"
	EventFailed    EventKind = "failed"
	EventRedriven  EventKind = "redriven"
	EventDiscarded EventKind = "discarded"
	EventPruned    EventKind = "pruned"
	// EventOutage: a call ended because the store is unavailable or a commit's
	// outcome unknown. The first one of an outage is logged as an error, those
	// that follow at debug level.
	EventOutage EventKind = "outage"
	// EventRecovered: the store answers again. Count: calls that had ended;
	// Duration: since the first of them did.
	EventRecovered EventKind = "recovered"
	EventAbandoned EventKind = "abandoned"
)

// Event is what a hook receives. Fields that do not apply are zero.
type Event struct {
	Kind EventKind
	// Level is how it is logged.
	Level    slog.Level
	Consumer string
	// Message is the ID, topic and position of the message concerned, without
	// key, payload and headers. Empty if it concerns a batch: a handler ended its
	// transaction, and whose is not known.
	Message Message
	// Count is how many messages or records the event stands for; at least 1.
	Count int
	// DeadLetter is the number of the letter that a Redrive was at, for
	// EventRedriven and for EventFailed of a redrive, after which it stays.
	DeadLetter int64
	// Reason is set for EventParked.
	Reason   Reason
	Attempts int
	// Duration is how long the transaction took, which a batch shares, the
	// round of pruning, or the outage.
	Duration time.Duration
	Err      error
}

// Hook is called for every event, synchronously: it must return quickly and be
// safe for concurrent use. If it panics, that is logged and counted, nothing else.
type Hook func(ctx context.Context, event Event)
