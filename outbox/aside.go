package outbox

import "time"

// State says why an event is set aside in a relay.
type State string

const (
	// Delayed: waits until it is due. It holds up nobody.
	Delayed State = "delayed"
	// Retrying: failed, and is tried again when it is due. Until then it holds
	// up its lane (BlockLane) or its key (ParkKey).
	Retrying State = "retrying"
	// Behind: waits behind an older event with the same topic and key (ParkKey).
	Behind State = "behind"
	// Dead: a dead letter, until a person redrives or discards it.
	Dead State = "dead"
	// Skipped: not to be published when the position gets there.
	Skipped State = "skipped"
)

// Aside is an event that a relay has set aside. The event itself stays in the log.
type Aside struct {
	Number int64
	Lane   int
	State  State

	// KeyHash is a hash of topic and key, for events with a key: see KeyHash.
	// Empty: the event has none.
	KeyHash string

	// After is when it is due, from now on, by the store's clock. Only for
	// Delayed and Retrying.
	After time.Duration

	Attempts int

	// Error is the text of the last error; at most 8 KiB.
	Error string

	// Ahead: its lane has not passed it, since an older event is still to be published.
	// It is read again, and is handled already. Only Held says so.
	Ahead bool
}
