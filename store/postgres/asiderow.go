package postgres

import (
	"errors"
	"time"

	"github.com/onceward/onceward/outbox"
)

// asideEvent are the columns of a row a of aside and the row o of the outbox that it
// is about, under the names that asideColumns read. Somebody may have deleted the latter.
const asideEvent = `a.number, coalesce(o.slot, 0) AS slot, coalesce(o.message_id, '') AS message_id, coalesce(o.topic, '') AS topic,
		o.key, o.payload, o.headers, coalesce(o.created_at, a.set_aside_at) AS created_at, o.deliver_after, o.number IS NULL AS missing,
		a.lane, a.state, coalesce(a.key_hash, '') AS key_hash, a.attempts, a.error, a.due_at, a.set_aside_at`

// asideColumns are what asideRow reads.
const asideColumns = eventColumns + `, ` + content + `, e.missing, e.lane, e.state, e.key_hash, e.attempts, e.error,
	(pg_catalog.date_part('epoch', e.due_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
	(pg_catalog.date_part('epoch', e.due_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint,
	(pg_catalog.date_part('epoch', e.set_aside_at) OPERATOR(pg_catalog.*) 1000000)::bigint`

type asideRow struct {
	eventRow

	content               int64
	missing               bool
	lane, attempts        int
	state, keyHash, error string
	dueAt, after          *int64
	setAsideAt            int64
}

func (r *asideRow) dest() []any {
	return append(r.eventRow.dest(), &r.content, &r.missing, &r.lane, &r.state, &r.keyHash, &r.attempts, &r.error, &r.dueAt, &r.after, &r.setAsideAt)
}

var errMissing = errors.New("the event was deleted from the log while it was set aside: discard it")

func (r *asideRow) asideEvent() outbox.AsideEvent {
	e := outbox.AsideEvent{
		Event: r.event(1),
		Aside: outbox.Aside{
			Number: r.number, Lane: r.lane, State: outbox.State(r.state), KeyHash: r.keyHash, Attempts: r.attempts, Error: r.error,
		},
		SetAsideAt: time.UnixMicro(r.setAsideAt).UTC(),
	}
	if r.after != nil {
		e.Aside.After = max(0, duration(*r.after))
	}
	if r.dueAt != nil {
		e.Due = time.UnixMicro(*r.dueAt).UTC()
	}
	e.Event.Lane, e.Event.Attempts = r.lane, r.attempts
	if r.content > outbox.MaxEventBytes {
		tooLarge(&e.Event, r.content)
	}
	if r.missing {
		e.Event.Invalid = errMissing
	}
	return e
}
