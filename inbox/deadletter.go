package inbox

import (
	"fmt"
	"time"
)

// Reason says why a message was set aside.
type Reason string

const (
	// ReasonAttempts: the handler failed MaxAttempts times.
	ReasonAttempts Reason = "attempts"
	// ReasonPermanent: the handler returned a Permanent error.
	ReasonPermanent Reason = "permanent"
	// ReasonMissingID: the message has no ID, so a duplicate could not be told, nor
	// can it be in a redrive: the same message sent twice is two letters. Redrive
	// therefore leaves them out, unless asked for this reason or for their numbers.
	ReasonMissingID Reason = "missing_id"
	// ReasonTooOld: the message is older than the retention, so its record may be gone.
	ReasonTooOld Reason = "too_old"
	// ReasonIDReused: the ID was recorded with another payload.
	ReasonIDReused Reason = "id_reused"
	// ReasonBehind: an earlier message with the same key is set aside (ParkKey).
	ReasonBehind Reason = "behind"
	// ReasonUnfinished: a handler ended the transaction it was lent, and so the
	// message was recorded although its own handler had failed or never ran. Part
	// of its work may be committed: look before redriving it.
	ReasonUnfinished Reason = "unfinished"
)

// DeadLetter is a message that was set aside, whole, until a person redrives or
// discards it.
type DeadLetter struct {
	// Number orders dead letters as they were written. Assigned by the store.
	Number int64

	Consumer string
	Reason   Reason

	// Error is the text of the last error; empty for ReasonBehind.
	Error    string
	Attempts int
	Message  Message

	// ParksKey: messages with the same topic and key wait behind this one.
	ParksKey bool

	// CreatedAt is when it was written. Assigned by the store, on its clock.
	CreatedAt time.Time
}

// Filter selects dead letters of one inbox. Conditions are joined by "and";
// the zero Filter selects all of them.
type Filter struct {
	// Numbers selects by number; nil: any, empty: none.
	Numbers []int64
	// After selects larger Numbers only: with Limit, it reads page by page.
	After     int64
	Reason    Reason
	Topic     string
	MessageID string
	// Key selects by ordering key; nil: any.
	Key []byte
	// Since and Before bound CreatedAt: Since ≤ CreatedAt < Before.
	Since, Before time.Time
	// Limit bounds how many are selected, oldest first. Zero: 1,000 in a
	// list; Redrive and Discard then go on until none is left. Negative is an error.
	Limit int
	// Brief leaves out what a list has no use for and can be large: Payload
	// and Headers of the messages are nil then. Redrive and Discard ignore it.
	Brief bool
}

func (f Filter) validate() error {
	if f.Limit < 0 {
		return fmt.Errorf("inbox: Filter.Limit is %d: pass how many dead letters to select at most, or 0 for no limit of your own", f.Limit)
	}
	return nil
}
