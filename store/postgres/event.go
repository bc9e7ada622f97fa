package postgres

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onceward/onceward/outbox"
)

// eventColumns are what eventRow reads, of a row e with the columns of the outbox
// and kept: false leaves out what can be large.
const eventColumns = `e.number, e.slot, e.message_id, e.topic, e.key,
	CASE WHEN kept THEN e.payload END, CASE WHEN kept THEN e.headers::text END, ` + eventTimes

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

// eventSize is what a row e takes on the way here. None of it reads a value that is
// stored out of line.
const eventSize = `100 + pg_catalog.octet_length(e.message_id) + pg_catalog.octet_length(e.topic)
	+ coalesce(pg_catalog.octet_length(e.key), 0) + coalesce(pg_catalog.octet_length(e.payload), 0)
	+ coalesce(pg_catalog.pg_column_size(e.headers), 0)`

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

// eventBytes is what the event takes, more or less.
func eventBytes(e *outbox.Event) int {
	size := 100 + len(e.ID) + len(e.Topic) + len(e.Key) + len(e.Payload)
	for i := range e.Headers {
		size += len(e.Headers[i].Name) + len(e.Headers[i].Value)
	}
	return size
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
