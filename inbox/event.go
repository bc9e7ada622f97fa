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
	EventOutage    EventKind = "outage"
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
	// Reason is set for EventParked.
	Reason   Reason
	Attempts int
	// Duration is how long the transaction took, which a batch shares, or the
	// round of pruning.
	Duration time.Duration
	Err      error
}

// Hook is called for every event, synchronously: it must return quickly and be
// safe for concurrent use.
type Hook func(ctx context.Context, event Event)
