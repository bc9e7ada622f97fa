package postgres

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// readSQL reads the next rows of a window. It has three parts:
//
//	w      the snapshot that the window ends at, and the last number given; with it
//	       bytea_output is hex in this statement: see hexSQL
//	late   transactions that seen saw in progress and target sees ended, each with its
//	       first row that is still to be read: by the index outbox_xid
//	chunk  how far to look: from the first row there is, over a bounded range of
//	       numbers, so that no filter and no gap makes one statement read a whole log
//
// The window's rows are those of late transactions, by outbox_xid, and those of new ones,
// by outbox_pkey; both lists come in order, and are merged here. The comparison of
// pairs is what keeps the planner from reading the former by their numbers. In a replay, all rows
// from its number on are among the latter.
//
// {limit} is a number, and late transactions are compared as they are, for the planner:
// of a parameter, and of a set, it expects so much that it would compile the statement to machine
// code each time, which takes ten times as long as running it.
//
// The first row returned is none of the log's: it has the number 0, and brings what the
// statement found out.
//
//	$1 seen    $2 target, or ''    $3 the last number handled    $4 replay, or a number beyond all
//	$5 start   $6 span             $7 bytes of a value that comes along    $8 limit
//	$9 those of headers, packed
//
//nolint:dupword,unqueryvet // SQL repeats itself. The columns are named once.
const readSQL = `
WITH w AS MATERIALIZED (
	SELECT coalesce(NULLIF($2::text, '')::pg_snapshot, pg_catalog.pg_current_snapshot()) AS target,
		pg_catalog.pg_snapshot_xmax($1::text::pg_snapshot) AS seen_xmax,
		(SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s) AS last_value,
		` + hexSQL + `
), late AS MATERIALIZED (
	SELECT x.xid, o.number
	FROM pg_catalog.pg_snapshot_xip($1::text::pg_snapshot) AS x (xid)
	CROSS JOIN LATERAL (
		SELECT o.number FROM {schema}.outbox o
		WHERE o.xid = x.xid AND (o.xid, o.number) > (x.xid, $3::bigint) AND (o.xid, o.number) < (x.xid, $4::bigint)
		ORDER BY o.xid, o.number LIMIT 1
	) o
	WHERE CASE WHEN pg_catalog.pg_visible_in_snapshot(x.xid, (SELECT target FROM w)) THEN 1 END = 1
), chunk AS MATERIALIZED (
	SELECT $6::bigint - 1 + LEAST(
		(SELECT o.number FROM {schema}.outbox o WHERE o.number > $5::bigint ORDER BY o.number LIMIT 1),
		(SELECT pg_catalog.min(number) FROM late)) AS upto
)
SELECT 0, 0::smallint, (SELECT target::text FROM w), '', NULL, NULL, NULL, (SELECT last_value FROM w), (SELECT upto FROM chunk), NULL, NULL, false
UNION ALL
(SELECT * FROM (SELECT {columns}, true
FROM late CROSS JOIN LATERAL (
	SELECT e.* FROM {schema}.outbox e
	WHERE e.xid = late.xid AND (e.xid, e.number) > (late.xid, $3::bigint)
	AND (e.xid, e.number) <= (late.xid, LEAST($4::bigint - 1, (SELECT upto FROM chunk))){filter}
	ORDER BY e.xid, e.number LIMIT {limit}
) e
ORDER BY e.number LIMIT {limit}) e LIMIT $8::bigint)
UNION ALL
(SELECT * FROM (SELECT {columns}, false
FROM {schema}.outbox e
WHERE e.number > $5::bigint AND e.number <= (SELECT upto FROM chunk)
AND (e.xid >= (SELECT seen_xmax FROM w) OR e.number >= $4::bigint)
AND pg_catalog.pg_visible_in_snapshot(e.xid, (SELECT target FROM w)){filter}
ORDER BY e.number LIMIT {limit}) e LIMIT $8::bigint)`

// readColumns are eventColumns, but for values that are larger than $7, or headers that may
// be when they are unpacked. The last one is how large the values are, if any is left out.
const readColumns = eventTexts + `, CASE WHEN pg_catalog.octet_length(e.key) <= $7::integer THEN e.key END,
	CASE WHEN pg_catalog.octet_length(e.payload) <= $7::integer THEN e.payload END,
	CASE WHEN pg_catalog.pg_column_size(e.headers) <= $9::integer THEN e.headers::text END, ` + eventTimes + `,
	CASE WHEN pg_catalog.octet_length(e.key) > $7::integer OR pg_catalog.octet_length(e.payload) > $7::integer
		OR pg_catalog.pg_column_size(e.headers) > $9::integer THEN ` + content + ` END`

// largeValuesSQL reads what was too large to come along, by the index outbox_pkey.
const largeValuesSQL = `
WITH hex AS MATERIALIZED (SELECT ` + hexSQL + `)
SELECT e.number, e.key, e.payload, e.headers::text FROM hex, {schema}.outbox e WHERE e.number = ANY ($1::text::bigint[])`

const (
	// span is how far to look at most, in numbers: a relay that reads few of many topics
	// or lanes should not need a round trip for each of them. It does not follow the limit, which
	// falls with the size of events: that says nothing of those that are passed over.
	span = 1 << 17

	// alongBytes is how large values may be, at least, that come along with their rows:
	// what is more than the bytes asked for was sent in vain. Larger ones are asked
	// for once it is known how many there is room for.
	alongBytes = 4096

	// maxAlongBytes is how large they may be at most, maxPackedBytes how large headers may
	// be, which the server may have packed to a 255th. All of them are less than
	// outbox.MaxEventBytes.
	maxAlongBytes, maxPackedBytes = 16 << 20, 64 << 10
)

// Read implements outbox.RelayStore. It is one statement, and another one for events of
// more than a few kilobytes.
func (d *Database[Tx]) Read(ctx context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	const doing = "read events"
	if len(r.Lanes) == 0 || r.Limit <= 0 {
		return outbox.Chunk{}, fmt.Errorf("postgres: Read: %d lanes and a limit of %d: ask for one at least", len(r.Lanes), r.Limit)
	}
	// Before the statement is sent: see floors.
	floor := d.floors.confirmed()
	w := newWindow(r, floor.number)
	if err := d.alone(ctx, doing, w.query(d.sql)); err != nil {
		return outbox.Chunk{}, err
	}
	d.floors.observe(floor, w.lastValue)
	if large := w.cut(); large != "" {
		if err := d.alone(ctx, doing, query{d.sql(largeValuesSQL), []any{large}, w.scanLarge}); err != nil {
			return outbox.Chunk{}, err
		}
		if len(w.large) > 0 {
			return outbox.Chunk{}, fmt.Errorf("postgres: %s: %w: %d of them were deleted meanwhile", doing, idempotency.ErrConflict, len(w.large))
		}
	}
	return w.chunk(), nil
}

// window is a chunk of a window, as it is read.
type window struct {
	outbox.ReadRequest

	open   outbox.Position
	merges bool // with lanes that have read up to Until
	replay int64

	row       windowRow
	dest      []any
	lastValue int64
	upto      *int64

	events  []outbox.Event
	hasLate bool // they come first, and are to be merged
	isCut   bool
	// leftOut is how large the values are that did not come along, and large the
	// places of their events, by number.
	leftOut map[int64]int64
	large   map[int64]int
}

func newWindow(r outbox.ReadRequest, floor int64) *window {
	w := &window{ReadRequest: r, open: r.Position, replay: cmp.Or(r.Position.Replay, math.MaxInt64)}
	w.dest = w.row.dest()
	switch {
	case w.open.Target != "":
	case r.Until.Seen != "":
		w.merges = true
		w.open.Target, w.open.TargetFloor = r.Until.Seen, r.Until.Floor
	default:
		w.open.TargetFloor = max(r.Position.Floor, floor)
	}
	return w
}

// start is the number behind which rows of new transactions are read.
func (w *window) start() int64 {
	return max(w.Position.Last, min(w.Position.Floor, w.replay-1))
}

// query has up to two conditions more than readSQL, and a limit. Both make few
// texts, so that connections prepare each once.
func (w *window) query(complete func(statement string, strength ...string) string) query {
	at := w.Position
	along := min(max(alongBytes, w.MaxBytes/w.Limit), maxAlongBytes)
	args := []any{
		seenText(at.Seen), w.open.Target, at.Last, w.replay,
		w.start(), int64(span),
		int64(along), int64(w.Limit), int64(min(along, maxPackedBytes)),
	}
	filter := ""
	if len(w.Lanes) < w.AllLanes {
		filter += fmt.Sprintf(" AND e.slot %% $%d::smallint = ANY ($%d::text::smallint[])", len(args)+1, len(args)+2)
		args = append(args, int64(w.AllLanes), lanesLiteral(w.Lanes))
	}
	if len(w.Topics) > 0 {
		filter += fmt.Sprintf(" AND e.topic LIKE ANY ($%d::text::text[])", len(args)+1)
		args = append(args, topicsLiteral(w.Topics))
	}
	statement := strings.NewReplacer("{filter}", filter, "{columns}", readColumns, "{limit}", planLimit(w.Limit)).Replace(readSQL)
	return query{complete(statement), args, w.scan}
}

func (w *window) scan(row scanner) error {
	if wire, isWire := row.(wireRow); !isWire || !w.row.read(wire) {
		if err := row.Scan(w.dest...); err != nil {
			return err
		}
	}
	if w.row.number == 0 {
		w.open.Target, w.lastValue, w.upto = w.row.id, w.row.createdAt, w.row.deliverAfter
		w.makeRoom()
		return nil
	}
	w.hasLate = w.hasLate || w.row.isLate
	w.events = append(w.events, w.row.event(w.AllLanes))
	switch leftOut := w.row.leftOut; {
	case leftOut == nil:
	case *leftOut > outbox.MaxEventBytes:
		tooLarge(&w.events[len(w.events)-1], *leftOut)
	default:
		if w.leftOut == nil {
			w.leftOut = map[int64]int64{}
		}
		w.leftOut[w.row.number] = *leftOut
	}
	return nil
}

// makeRoom: no more rows of new transactions come than there are numbers for.
func (w *window) makeRoom() {
	if w.upto == nil {
		return
	}
	if most := min(int64(w.Limit), *w.upto-w.start(), w.lastValue-w.start()); most > 0 {
		w.events = make([]outbox.Event, 0, most)
	}
}

// cut merges the two lists and keeps what was asked for. It returns the numbers of
// events of which something is left out.
func (w *window) cut() (large string) {
	if w.hasLate {
		slices.SortFunc(w.events, func(a, b outbox.Event) int { return cmp.Compare(a.Number, b.Number) })
	}
	keep, bytes := 0, 0
	var numbers arrayLiteral
	for i := range w.events {
		e := &w.events[i]
		leftOut, isLarge := w.leftOut[e.Number]
		if bytes += e.Size() + int(leftOut); keep == w.Limit || keep > 0 && bytes > w.MaxBytes {
			break
		}
		if isLarge {
			if w.large == nil {
				w.large = map[int64]int{}
			}
			w.large[e.Number] = i
			numbers.addInt(e.Number)
		}
		keep++
	}
	// As many as the limit: there may have been more.
	w.isCut = keep > 0 && (keep < len(w.events) || keep == w.Limit)
	clear(w.events[keep:]) // for the garbage collector
	w.events = w.events[:keep]
	if w.large == nil {
		return ""
	}
	return numbers.String()
}

func (w *window) scanLarge(row scanner) error {
	var r eventRow
	if err := row.Scan(&r.number, &r.key, &r.payload, &r.headers); err != nil {
		return err
	}
	if place, asked := w.large[r.number]; asked {
		r.fill(&w.events[place])
		delete(w.large, r.number)
	}
	return nil
}

// chunk says what was read, and how far.
func (w *window) chunk() outbox.Chunk {
	c := outbox.Chunk{Window: w.open, End: w.open, More: true, Events: w.events}
	switch {
	case w.isCut:
		c.End.Last = w.events[len(w.events)-1].Number
	case w.upto != nil && *w.upto < w.lastValue:
		c.End.Last = *w.upto
	default:
		// Behind a window that was opened before, others may have committed.
		c.More = w.Position.Target != "" || w.merges
		c.End = outbox.Position{Seen: w.open.Target, Floor: w.open.TargetFloor}
		if w.idle() {
			c.Window, c.End = w.Position, w.Position
		}
	}
	return c
}

// idle: there was nothing to pass, so that nothing needs to be saved. Numbers above the
// floor are something: the scan would begin with them each time.
func (w *window) idle() bool {
	at := w.Position
	return len(w.events) == 0 && at.Target == "" && at.Replay == 0 && !w.merges && w.lastValue <= at.Floor
}

// planLimit is a limit that stands in a statement, one of few: the power of two that
// is large enough.
func planLimit(limit int) string {
	return strconv.FormatUint(1<<bits.Len(uint(limit-1)), 10)
}

func lanesLiteral(lanes []int) string {
	var literal arrayLiteral
	for _, lane := range lanes {
		literal.addInt(int64(lane))
	}
	return literal.String()
}

// topicsLiteral turns patterns into those of LIKE.
func topicsLiteral(topics []string) string {
	var literal arrayLiteral
	for _, pattern := range topics {
		literal.addText(likePattern.Replace(pattern))
	}
	return literal.String()
}

//nolint:gochecknoglobals // A constant in all but name.
var likePattern = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`)
