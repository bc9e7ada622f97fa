package inbox

import "time"

// Message is one message as its producer meant it, whichever broker carried it.
//
// Bytes are never reused after delivery: a handler may keep them. Nil and empty
// are told apart in Key, Payload and header values (in Kafka a nil payload is a
// tombstone).
type Message struct {
	// ID is the producer's identity of the message, equal on every redelivery.
	// Empty means that none was found; see Identity for where adapters look.
	ID string

	// Source is what ID is unique within: the topic or queue, or the
	// CloudEvents source where the message has one.
	Source string

	// Topic is the topic or queue the message was read from.
	Topic string

	// Key is the ordering key, nil if the message has none.
	Key []byte

	Payload []byte
	Headers []Header

	// Time is the producer's or broker's timestamp; zero if unknown.
	Time time.Time

	// Position is where the broker holds this delivery, for logs, dead letters
	// and PositionID: "topic/partition/offset" in Kafka.
	Position string
}

// Header is one header of a message. Names may repeat, order is kept.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the first header with exactly this name.
func (m Message) Header(name string) (value []byte, ok bool) {
	for _, h := range m.Headers {
		if h.Name == name {
			return h.Value, true
		}
	}
	return nil, false
}
