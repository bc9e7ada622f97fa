package sqlite

import (
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/outbox"
)

// content reads bytes that plain SQL may have written as text, and tells NULL
// (nil) from empty (not nil).
type content []byte

func (c *content) Scan(value any) error {
	if text, ok := value.(string); ok {
		*c = append(content{}, text...)
		return nil
	}
	return (*blob)(c).Scan(value)
}

// eventBriefly are the columns of an event, without what can be large.
const eventBriefly = `e.number, e.topic, e.id, e.created_at, e.deliver_after, e.deliver_after - ` + now + `, e.key, ` + contentBytes

// contentBytes is how many bytes of an event can be large. It reads none of them.
const contentBytes = `coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0)`

// eventContent is left out where there is more than outbox.MaxEventBytes.
const eventContent = `CASE WHEN ` + contentBytes + ` <= 67108864 THEN e.headers END, CASE WHEN ` + contentBytes + ` <= 67108864 THEN e.payload END`

const eventColumns = eventBriefly + `, ` + eventContent

// eventRow is an event as it is scanned.
type eventRow struct {
	outbox.Event

	created, content    int64
	deliverAfter, waits *int64
	key, payload        content
	headers             *string
}

func (r *eventRow) brief() []any {
	return []any{&r.Number, &r.Topic, &r.ID, &r.created, &r.deliverAfter, &r.waits, &r.key, &r.content}
}

func (r *eventRow) whole() []any { return append(r.brief(), &r.headers, &r.payload) }

// event is what was scanned, in a relay of so many lanes.
func (r *eventRow) event(lanes int) outbox.Event {
	e := r.Event
	e.Key, e.Payload = r.key, r.payload
	e.Lane = slotOf(e.Key, e.Number) % lanes
	e.CreatedAt = time.UnixMicro(r.created).UTC()
	if r.deliverAfter != nil {
		e.DeliverAfter = time.UnixMicro(*r.deliverAfter).UTC()
		e.Waits = duration(*r.waits)
	}
	var err error
	if r.headers != nil {
		e.Headers, err = decodeEventHeaders(*r.headers)
	}
	e.Invalid = errors.Join(err, outbox.CheckSize(r.content), e.Check())
	return e
}

// duration is one of so many microseconds, or the longest there is.
func duration(microseconds int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(microseconds, -most), most)) * time.Microsecond
}

// eventHeader is a header in the log. A value that is text stands as text, for
// people and for programs that have no base64.
type eventHeader struct {
	Name   string  `json:"name"`
	Value  *string `json:"value,omitempty"`
	Base64 *string `json:"base64,omitempty"`
}

// encodeEventHeaders returns NULL for none.
func encodeEventHeaders(headers []outbox.Header) (sql.Null[string], error) {
	if len(headers) == 0 {
		return sql.Null[string]{}, nil
	}
	stored := make([]eventHeader, len(headers))
	for i, h := range headers {
		stored[i].Name = h.Name
		switch {
		case h.Value == nil:
		case utf8.Valid(h.Value):
			text := string(h.Value)
			stored[i].Value = &text
		default:
			text := base64.StdEncoding.EncodeToString(h.Value)
			stored[i].Base64 = &text
		}
	}
	list, err := json.Marshal(stored)
	return sql.Null[string]{V: string(list), Valid: true}, err
}

// decodeEventHeaders reads what any program may have written.
func decodeEventHeaders(list string) ([]outbox.Header, error) {
	decoder := json.NewDecoder(strings.NewReader(list))
	decoder.DisallowUnknownFields()
	var stored []eventHeader
	if err := decoder.Decode(&stored); err != nil {
		return nil, fmt.Errorf(`headers are no JSON of the form [{"name": "a", "value": "text"}, {"name": "b", "base64": "AP8="}]: %w`, err)
	}
	var headers []outbox.Header
	for i, s := range stored {
		h := outbox.Header{Name: s.Name}
		switch {
		case s.Value != nil && s.Base64 != nil:
			return nil, fmt.Errorf(`header %d has both a "value" and a "base64"`, i)
		case s.Value != nil:
			h.Value = []byte(*s.Value)
		case s.Base64 != nil:
			value, err := base64.StdEncoding.DecodeString(*s.Base64)
			if err != nil {
				return nil, fmt.Errorf("header %d: %w", i, err)
			}
			h.Value = value
		}
		headers = append(headers, h)
	}
	return headers, nil
}
