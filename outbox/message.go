package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Message is an event to be published.
type Message struct {
	// ID is the identity of the event, equal in every copy that a broker
	// delivers. Empty: a UUIDv7 (see NewID). Text of at most 512 bytes. It is not
	// checked to be unique: readers drop a second event with the same ID.
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
	// headers that are none, or hundreds of megabytes. Such an event is a dead letter at once.
	Invalid error
}

// Size is what the event takes in memory, in bytes, more or less.
func (e *Event) Size() int {
	const row = 100
	return row + len(e.ID) + len(e.Topic) + e.size()
}

// MaxEventBytes is how many bytes key, payload and headers of an event may take together in
// the log. Append refuses more, but plain SQL may write it: that comes Invalid, without
// payload and headers and perhaps without its key, or reading it would fail time after
// time and nothing behind it be published.
const MaxEventBytes = 64 << 20

// CheckSize returns what is wrong with an event that takes so many bytes in the log, its
// headers as the store writes them.
func CheckSize(bytes int64) error {
	if bytes > MaxEventBytes {
		return fmt.Errorf("key, payload and headers take %d bytes in the log, more than the %d that relays read: "+
			"store the content elsewhere and publish where it is", bytes, MaxEventBytes)
	}
	return nil
}

// NewID returns a new ID, a UUIDv7: IDs made later sort later, which keeps the
// indexes of whoever stores them small and warm.
func NewID() string {
	// It fails only if the system has no random numbers, and then Go ends the process.
	return uuid.Must(uuid.NewV7()).String()
}

// maxText bounds IDs and topics: stores index them.
const maxText = 512

// Check returns what no publisher can make sense of, nil if there is nothing. Stores ask
// it about rows, which plain SQL may have written: those have an ID. It tells no payload and no key.
func (m *Message) Check() error {
	if m.ID == "" {
		return errors.New("ID is empty: a row needs one")
	}
	return m.check()
}

// check is Check of a message that may have no ID yet.
func (m *Message) check() error {
	if problem := textProblem(m.ID); problem != "" {
		return fmt.Errorf("ID of %d bytes %s: pass text of at most %d bytes, or none to have one made", len(m.ID), problem, maxText)
	}
	if m.Topic == "" {
		return errors.New("topic is empty: name where the event is published to")
	}
	if problem := textProblem(m.Topic); problem != "" {
		return fmt.Errorf("topic of %d bytes %s: pass text of at most %d bytes", len(m.Topic), problem, maxText)
	}
	for i := range m.Headers {
		if err := validateHeader(m.Headers[i].Name); err != nil {
			return fmt.Errorf("header %d: %w", i, err)
		}
	}
	return nil
}

// validate returns what is wrong with a message that is to be written.
func (m *Message) validate(maxBytes int) error {
	if err := m.check(); err != nil {
		return err
	}
	if size := m.size(); size > maxBytes {
		return fmt.Errorf("payload of %d bytes, key of %d and headers of %d are %d bytes, more than the limit of %d: "+
			"store the content elsewhere and publish where it is, or raise the limit with MaxBytes if all brokers take as much",
			len(m.Payload), len(m.Key), size-len(m.Payload)-len(m.Key), size, maxBytes)
	}
	return nil
}

func validateHeader(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty: name the header or leave it out")
	case !utf8.ValidString(name):
		return fmt.Errorf("name of %d bytes is not valid UTF-8: pass text", len(name))
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("name of %d bytes contains a NUL: pass text without", len(name))
	case strings.EqualFold(name, HeaderID):
		return fmt.Errorf("%q is set by publishers, with the ID of the event: set Message.ID instead", HeaderID)
	}
	return nil
}

// textProblem says why s cannot stand in a text column that is indexed. Empty: it can.
func textProblem(s string) string {
	switch {
	case len(s) > maxText:
		return fmt.Sprintf("is longer than %d", maxText)
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.ContainsRune(s, 0):
		return "contains a NUL"
	}
	return ""
}

// headerBytes is what a header takes beside its name and value. Kafka needs two to six
// bytes to say how long they are, others more.
const headerBytes = 8

// size is what a broker's limit is about.
func (m *Message) size() int {
	size := len(m.Key) + len(m.Payload) + headerBytes*len(m.Headers)
	for i := range m.Headers {
		size += len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return size
}
