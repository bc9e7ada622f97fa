package outbox

import "time"

// Message is an event to be published.
type Message struct {
	// ID is the identity of the event, equal in every copy that a broker
	// delivers. Empty: a UUIDv7 (see NewID). Text of at most 512 bytes.
	ID string

	// Topic is where to: a topic, a queue, an exchange with a routing key,
	// whatever the publisher makes of it. Never empty; text of at most 512 bytes.
	Topic string

	// Key orders events: those with the same topic and key are published in
	// the order of Publish. Nil: none. Brokers get it as the message's key.
	Key []byte

	// Payload may be nil, which publishers keep apart from empty where the
	// broker can (in Kafka a nil payload is a tombstone).
	Payload []byte

	// Headers go along. Names are not empty and valid UTF-8 without NUL.
	// HeaderID is not for the caller to set.
	Headers []Header

	// DeliverAfter is when to publish at the earliest, by the database's
	// clock. Zero or past: at once. A delayed event is overtaken by later ones.
	DeliverAfter time.Time
}

// HeaderID is the header in which publishers send the ID of an event, and where
// an inbox looks first.
const HeaderID = "onceward-id"

// Header is one header of an event. Names may repeat, order is kept.
type Header struct {
	Name  string
	Value []byte
}

// Event is a row of the log, as a publisher gets it.
type Event struct {
	Message

	// Number is the event's place in the log: the order of writing, with gaps.
	Number int64

	// Lane is the lane of the relay that reads it.
	Lane int

	// CreatedAt is when it was written, on the store's clock.
	CreatedAt time.Time

	// Waits is how long it still is until DeliverAfter, by the store's clock
	// when it was read. Zero or less: it is due.
	Waits time.Duration

	// Attempts is how often publishing it has failed.
	Attempts int

	// Invalid says why the row cannot be published: plain SQL may write
	// headers that are none. Such an event is a dead letter at once.
	Invalid error
}
