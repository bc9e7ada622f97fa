package postgres

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// storable is a text, of an error for one, as a text column can hold it.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// rawFields holds, in the column raw, the fields of a message whose stored form
// does not give them back. encoding/json writes []byte in base64.
type rawFields struct {
	ID       []byte `json:"id,omitempty"`
	Source   []byte `json:"source,omitempty"`
	Topic    []byte `json:"topic,omitempty"`
	Key      []byte `json:"key,omitempty"`
	Position []byte `json:"position,omitempty"`
}

// storedForm returns the stored form of s, and s itself if they differ.
func storedForm(s string) (form string, raw []byte) {
	if form = idempotency.StoredForm(s); form != s {
		raw = []byte(s)
	}
	return form, raw
}

func originalOf(form string, raw []byte) string {
	if raw != nil {
		return string(raw)
	}
	return form
}

// letterArgs are the arguments of a letter in addLettersSQL.
func letterArgs(l inbox.DeadLetter) ([]any, error) {
	var raw rawFields
	var id, source, topic, position string
	var key, rawColumn, headers any
	m := l.Message
	id, raw.ID = storedForm(m.ID)
	source, raw.Source = storedForm(m.Source)
	topic, raw.Topic = storedForm(m.Topic)
	position, raw.Position = storedForm(m.Position)
	if m.Key != nil {
		key, raw.Key = storedForm(string(m.Key))
	}
	if raw.ID != nil || raw.Source != nil || raw.Topic != nil || raw.Key != nil || raw.Position != nil {
		text, err := json.Marshal(raw)
		if err != nil {
			return nil, err
		}
		rawColumn = string(text)
	}
	if m.Headers != nil {
		text, err := headersText(m.Headers)
		if err != nil {
			return nil, err
		}
		headers = text
	}
	return []any{
		idempotency.StoredForm(l.Consumer), topic, source, id, string(l.Reason), storable(l.Error), int64(l.Attempts),
		key, bytesArg(m.Payload), headers, position, timeArg(m.Time), parks(l), rawColumn,
	}, nil
}

// parks reports whether the letter holds up others: without a key there is
// nothing to wait for.
func parks(l inbox.DeadLetter) bool { return l.ParksKey && l.Message.Key != nil }

// letterColumns are what scanLetter reads, briefColumns all of it but payload and
// headers. Times come as microseconds, because how a timestamptz looks depends on
// the connection's settings.
const (
	briefColumns = `number, topic, source, message_id, reason, error, attempts, message_key, position,
	(extract(epoch FROM message_time) OPERATOR(pg_catalog.*) 1000000)::bigint, parks_key,
	(extract(epoch FROM created_at) OPERATOR(pg_catalog.*) 1000000)::bigint, raw::text`
	letterColumns = briefColumns + `, pg_catalog.encode(payload, 'base64'), headers::text`
)

func scanLetter(row scanner, consumer string) (inbox.DeadLetter, error) {
	l := inbox.DeadLetter{Consumer: consumer}
	m := &l.Message
	var reason string
	var key, payload, headers, rawColumn *string
	var sentAt *int64
	var createdAt int64
	err := row.Scan(&l.Number, &m.Topic, &m.Source, &m.ID, &reason, &l.Error, &l.Attempts, &key, &m.Position,
		&sentAt, &l.ParksKey, &createdAt, &rawColumn, &payload, &headers)
	if err != nil {
		return l, err
	}
	var raw rawFields
	if rawColumn != nil {
		if err := json.Unmarshal([]byte(*rawColumn), &raw); err != nil {
			return l, fmt.Errorf("dead letter %d: column raw: %w", l.Number, err)
		}
	}
	if payload != nil {
		// The server breaks it into lines, which the decoder passes over.
		if m.Payload, err = base64.StdEncoding.DecodeString(*payload); err != nil {
			return l, fmt.Errorf("dead letter %d: column payload: %w", l.Number, err)
		}
	}
	if headers != nil {
		if m.Headers, err = parseHeaders[inbox.Header](*headers); err != nil {
			return l, fmt.Errorf("dead letter %d: column headers: %w", l.Number, err)
		}
	}
	m.ID = originalOf(m.ID, raw.ID)
	m.Source = originalOf(m.Source, raw.Source)
	m.Topic = originalOf(m.Topic, raw.Topic)
	m.Position = originalOf(m.Position, raw.Position)
	if key != nil {
		m.Key = []byte(originalOf(*key, raw.Key))
	}
	if sentAt != nil {
		m.Time = time.UnixMicro(*sentAt).UTC()
	}
	l.Reason = inbox.Reason(reason)
	l.CreatedAt = time.UnixMicro(createdAt).UTC()
	return l, nil
}

// timeArg is a time as every setting of the connection reads it, to the
// microsecond; nil for the zero time. A producer's clock can say anything: what
// no calendar shows is moved to the nearest year that one does.
func timeArg(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	switch {
	case t.Year() < 1:
		t = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	case t.Year() > 9999:
		t = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return t.Format("2006-01-02 15:04:05.999999Z07:00")
}
