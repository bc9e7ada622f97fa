package kafka

import (
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/inbox"
)

// messages makes messages of one partition's records. Keys, payloads and header
// values stay where they were received; what is made for every record comes
// from arrays that many share.
type messages struct {
	topic    string
	prefix   string // of positions: "topic/partition/"
	identity inbox.Identity

	// names are the header names seen: few and repeated.
	names map[string]string

	out       []inbox.Message
	offsets   []int64
	headers   []inbox.Header
	positions strings.Builder
}

const (
	// maxNames bounds the header names that are remembered.
	maxNames = 256
	// maxHeaderRoom bounds how many headers are allocated for before they are
	// read.
	maxHeaderRoom = 4096
	// maxRoom bounds what is allocated on the word of a batch's header.
	maxRoom = 1 << 17
)

func newMessages(topic string, partition int, identity inbox.Identity) *messages {
	return &messages{
		topic: topic, prefix: topic + "/" + strconv.Itoa(partition) + "/",
		identity: identity, names: make(map[string]string),
	}
}

// begin makes room for n messages, of which last has the highest offset.
func (m *messages) begin(n int, last int64) {
	var digits [20]byte
	n = min(n, maxRoom)
	m.out = make([]inbox.Message, 0, n)
	m.offsets = make([]int64, 0, n)
	m.headers = nil
	m.positions = strings.Builder{}
	m.positions.Grow(n * (len(m.prefix) + len(strconv.AppendInt(digits[:0], last, 10))))
}

// add makes a message of a record.
func (m *messages) add(r *record) error {
	headers, err := m.readHeaders(r)
	if err != nil {
		return err
	}
	m.out = append(m.out, inbox.Message{})
	out := &m.out[len(m.out)-1] // filled in place: it is large, and there are many
	out.Source, out.Topic = m.topic, m.topic
	out.Key, out.Payload, out.Headers = r.key, r.value, headers
	out.Time, out.Position = recordTime(r.time), m.position(r.offset)
	m.identity.Resolve(out, "")
	m.offsets = append(m.offsets, r.offset)
	return nil
}

func (m *messages) count() int { return len(m.out) }

// cut forgets all messages but the first n.
func (m *messages) cut(n int) { m.out, m.offsets = m.out[:n], m.offsets[:n] }

// end returns the messages and forgets them.
func (m *messages) end() ([]inbox.Message, []int64) {
	out, offsets := m.out, m.offsets
	m.out, m.offsets, m.headers = nil, nil, nil
	return out, offsets
}

func (m *messages) readHeaders(r *record) ([]inbox.Header, error) {
	if r.headers == 0 {
		return nil, nil
	}
	if cap(m.headers)-len(m.headers) < r.headers {
		// For the records to come as well, if they are like this one. Beyond
		// maxHeaderRoom it grows with what is really there.
		m.headers = make([]inbox.Header, 0, min(min(r.headers, maxHeaderRoom)*max(cap(m.out)-len(m.out), 1), maxHeaderRoom))
	}
	first := len(m.headers)
	for range r.headers {
		name := r.more.nullable()
		value := r.more.nullable()
		if r.more.err != nil {
			return nil, r.more.err
		}
		m.headers = append(m.headers, inbox.Header{Name: m.name(name), Value: value})
	}
	return m.headers[first:len(m.headers):len(m.headers)], nil
}

func (m *messages) name(b []byte) string {
	if name, ok := m.names[string(b)]; ok {
		return name
	}
	name := string(b)
	if len(m.names) < maxNames {
		m.names[name] = name
	}
	return name
}

func (m *messages) position(offset int64) string {
	var digits [20]byte
	at := m.positions.Len()
	m.positions.WriteString(m.prefix)
	m.positions.Write(strconv.AppendInt(digits[:0], offset, 10))
	return m.positions.String()[at:]
}

// recordTime is zero for a record without a timestamp, which Kafka writes as -1.
func recordTime(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
