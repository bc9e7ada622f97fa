package postgres

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onceward/onceward/outbox"
)

// eventColumns are what eventRow reads, of a row e with the columns of the outbox
// and kept: false leaves out what can be large. What is larger than an event may be
// is left out always.
const eventColumns = eventTexts + `,
	CASE WHEN pg_catalog.octet_length(e.key) <= ` + keptText + ` OR ` + content + ` <= ` + maxContent + ` THEN e.key END,
	CASE WHEN kept AND ` + content + ` <= ` + maxContent + ` THEN e.payload END,
	CASE WHEN kept AND ` + content + ` <= ` + maxContent + ` THEN e.headers::text END, ` + eventTimes

// eventTexts are cut where they are so long that the event is invalid anyway.
const eventTexts = `e.number, e.slot,
	CASE WHEN pg_catalog.octet_length(e.message_id) <= ` + keptText + ` THEN e.message_id ELSE pg_catalog.left(e.message_id, 1000) END,
	CASE WHEN pg_catalog.octet_length(e.topic) <= ` + keptText + ` THEN e.topic ELSE pg_catalog.left(e.topic, 1000) END`

// content is how many bytes the values of a row e have that can be large. Only headers
// that are packed are read for it: how large they are is known in no other way.
const content = `coalesce(pg_catalog.octet_length(e.key), 0)::bigint + coalesce(pg_catalog.octet_length(e.payload), 0)
	+ coalesce(CASE WHEN pg_catalog.pg_column_compression(e.headers) IS NULL THEN pg_catalog.pg_column_size(e.headers)
		ELSE pg_catalog.octet_length(e.headers::text) END, 0)`

const (
	// maxContent is outbox.MaxEventBytes, in a statement.
	maxContent = `67108864`

	// keptText is alongBytes, in a statement.
	keptText = `4096`
)

// hexSQL makes the server write bytes in hex until the transaction ends: as text, which
// some of pgx's modes ask for, pgx reads no other form. For a log that is cheaper than
// the base64 of dead letters, and no work has this transaction.
const hexSQL = `pg_catalog.set_config('bytea_output', 'hex', true)`

// eventTimes are times as microseconds, because how a timestamptz looks depends on the
// connection's settings; date_part, because extract computes them as numeric, ten times
// slower.
const eventTimes = `(pg_catalog.date_part('epoch', e.created_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
	(pg_catalog.date_part('epoch', e.deliver_after) OPERATOR(pg_catalog.*) 1000000)::bigint,
	(pg_catalog.date_part('epoch', e.deliver_after OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint`

// eventSize is what a row e takes on the way here, more or less.
const eventSize = `100 + LEAST(pg_catalog.octet_length(e.message_id), 1000) + LEAST(pg_catalog.octet_length(e.topic), 1000)
	+ CASE WHEN ` + content + ` <= ` + maxContent + ` THEN (` + content + `)::integer ELSE 0 END`

// eventRow is a row of the log, as it is read.
type eventRow struct {
	number, slot        int64
	id, topic           string
	key, payload        []byte
	headers             *string
	createdAt           int64
	deliverAfter, waits *int64
}

func (r *eventRow) dest() []any {
	return []any{&r.number, &r.slot, &r.id, &r.topic, &r.key, &r.payload, &r.headers, &r.createdAt, &r.deliverAfter, &r.waits}
}

// event is the row as an event of a relay with so many lanes. Anybody may write rows,
// so that whatever stands in one is an event, if an invalid one.
func (r *eventRow) event(lanes int) outbox.Event {
	e := outbox.Event{
		Message:   outbox.Message{ID: r.id, Topic: r.topic},
		Number:    r.number,
		Lane:      int(r.slot) % lanes,
		CreatedAt: time.UnixMicro(r.createdAt).UTC(),
	}
	if r.deliverAfter != nil {
		e.DeliverAfter = time.UnixMicro(*r.deliverAfter).UTC()
	}
	if r.waits != nil {
		e.Waits = duration(*r.waits)
	}
	r.fill(&e)
	return e
}

// tooLarge makes an event invalid that takes so many bytes. A key that did not come with
// every statement does not come with this one.
func tooLarge(e *outbox.Event, bytes int64) {
	e.Invalid = errors.Join(outbox.CheckSize(bytes), e.Check())
	e.Payload, e.Headers = nil, nil
	if len(e.Key) > alongBytes {
		e.Key = nil
	}
}

// fill gives an event what can be large.
func (r *eventRow) fill(e *outbox.Event) {
	e.Key, e.Payload = r.key, r.payload
	var headersErr error
	if r.headers != nil {
		if e.Headers, headersErr = parseHeaders[outbox.Header](*r.headers); headersErr != nil {
			headersErr = fmt.Errorf(`column headers is not of the form [["name","value"],…]: %w`, headersErr)
		}
	}
	if e.Invalid = e.Check(); headersErr != nil {
		e.Invalid = errors.Join(headersErr, e.Invalid)
	}
}

// duration is a number of microseconds, or the longest one there is.
func duration(microseconds int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(microseconds, -most), most)) * time.Microsecond
}

// fromNow is a duration from now on that was read as microseconds; past is now, and
// NULL is negative.
func fromNow(microseconds *int64) time.Duration {
	if microseconds == nil {
		return -1
	}
	return max(0, duration(*microseconds))
}
