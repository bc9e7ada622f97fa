package inbox

import (
	"slices"
	"time"
)

// Message is one message as its producer meant it, whichever broker carried it.
//
// A handler gets a copy of its own: it may keep and change Key, Payload and Headers,
// as by decrypting in place. Nil and empty are told apart in Key, Payload and header
// values (in Kafka a nil payload is a tombstone).
type Message struct {
	// ID is the producer's identity of the message, equal on every redelivery.
	// Empty means that none was found; see Identity for where adapters look.
	ID string

	// Source is what ID is unique within: the topic or queue, or "ce:" and the
	// CloudEvents source where the message has one. Resolve marks it so, and puts
	// "topic:" before a topic whose own name begins with "ce:" or "topic:": what a
	// producer writes into a header is never equal to a topic.
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

	// noID is why ID is empty, if there is more to say than that: Identity.Missing
	// panicked.
	noID error
}

// cloneMessage returns a copy that shares no bytes with m. The bytes are one allocation
// for each message and not for a batch: one that is kept keeps no others.
func cloneMessage(m *Message) Message {
	size := len(m.Key) + len(m.Payload)
	for _, h := range m.Headers {
		size += len(h.Value)
	}
	room := make([]byte, 0, size)
	keep := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		start := len(room)
		room = append(room, b...)
		return room[start:len(room):len(room)] // an append to it can't reach the next
	}
	c := *m
	c.Key, c.Payload, c.Headers = keep(m.Key), keep(m.Payload), slices.Clone(m.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = keep(c.Headers[i].Value)
	}
	return c
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
