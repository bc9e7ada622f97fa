package inbox

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// HeaderID is the header in which Onceward's own publishers put the ID.
const HeaderID = "onceward-id"

// Identity says where adapters find the ID of a message. The first place that
// holds one wins:
//
//  1. the header "onceward-id", set by Onceward's publishers;
//  2. the Headers listed here: what is named beats what is guessed;
//  3. CloudEvents: "ce_id", whose Source becomes "ce:" and "ce_source" (in AMQP
//     also "cloudEvents:id" and "cloudEvents_id");
//  4. the broker's own property: AMQP message_id, SQS deduplication id;
//  5. the header "id" of Debezium's outbox event router;
//  6. what Missing returns.
//
// Header names match exactly first, then without case; empty values count as
// absent. The zero Identity is ready to use: a message without an ID is then set
// aside as a dead letter.
//
// Beware of "id". Debezium writes the event's id there, and Eventuate ("ID")
// the message's; but Spring's messages have an "id" as well, drawn at random
// for every send and every hop. Spring for Apache Kafka leaves it out unless a
// header mapper with patterns of its own lets it through; then redeliveries by the
// broker are still duplicates, but what the producer sends twice is handled
// twice. In such a system let the producer set "onceward-id", or list the header
// that holds the true ID: both are asked before "id".
//
// CloudEvents in structured mode keep their id in the payload: derive it in Missing.
type Identity struct {
	// Headers are names of headers that carry an ID, the best first. Known ones:
	//
	//	Watermill         _watermill_message_uuid
	//	MassTransit       MessageId
	//	NServiceBus       NServiceBus.MessageId
	//	Rebus             rbs2-msg-id
	//	Axon Framework    axon-message-id
	//
	// Never list a correlation or trace id: several messages share one. Nor
	// "ce_id", which brings its Source with it only when it is found unlisted.
	Headers []string

	// Missing gives an ID to a message that has none, such as PositionID or a
	// function of the payload. It must return the same ID on every redelivery,
	// so never a random one. The message is lent: Missing leaves what it holds as it
	// is and keeps no part of its bytes, nor returns one in place of a copy. Nil, an
	// empty result or a panic: the message is set aside with ReasonMissingID.
	Missing func(Message) string
}

// PositionID identifies a message by where the broker holds it. It tells
// redeliveries, but not a message that its producer sent twice; and a topic
// that was deleted and made again counts from the start, so that its new
// messages look like duplicates.
func PositionID(m Message) string { return m.Position }

// Marks of sources, which make them injective: a CloudEvents source is written by
// the producer and may well be a topic's name.
const (
	markCloudEvents = "ce:"
	markTopic       = "topic:"
)

// Resolve sets m.ID and, where Message.Source says so, changes m.Source, which the
// adapter has set to the topic or queue. It is called once a delivery. native is
// the broker's own message id, empty if there is none.
func (identity Identity) Resolve(m *Message, native string) {
	if strings.HasPrefix(m.Source, markCloudEvents) || strings.HasPrefix(m.Source, markTopic) {
		m.Source = markTopic + m.Source
	}
	if m.ID = headerText(m.Headers, HeaderID); m.ID != "" {
		return
	}
	for _, name := range identity.Headers {
		if m.ID = headerText(m.Headers, name); m.ID != "" {
			return
		}
	}
	// CloudEvents' names in its bindings for Kafka, and both that AMQP's allows.
	for _, names := range [...]struct{ id, source string }{
		{"ce_id", "ce_source"},
		{"cloudEvents:id", "cloudEvents:source"},
		{"cloudEvents_id", "cloudEvents_source"},
	} {
		if m.ID = headerText(m.Headers, names.id); m.ID != "" {
			if source := headerText(m.Headers, names.source); source != "" {
				m.Source = markCloudEvents + source
			}
			return
		}
	}
	if m.ID = native; m.ID != "" {
		return
	}
	if m.ID = headerText(m.Headers, "id"); m.ID != "" {
		return
	}
	if identity.Missing != nil {
		m.ID, m.noID = identity.derive(*m)
	}
}

// derive calls Missing, which is the user's: one message that it panics for must
// not stop all others.
func (identity Identity) derive(m Message) (id string, err error) {
	defer func() {
		if value := recover(); value != nil {
			panicked := &PanicError{Value: value, Stack: debug.Stack(), who: "Identity.Missing"}
			id, err = "", fmt.Errorf("%w: %w", errMissingID, panicked)
		}
	}()
	return identity.Missing(m), nil
}

// headerText returns the first value that is not empty of the header with
// exactly this name, else of one that differs in case only.
func headerText(headers []Header, name string) string {
	for _, h := range headers {
		if h.Name == name && len(h.Value) > 0 {
			return string(h.Value)
		}
	}
	for _, h := range headers {
		if len(h.Value) > 0 && strings.EqualFold(h.Name, name) {
			return string(h.Value)
		}
	}
	return ""
}
