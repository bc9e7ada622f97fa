package postgres

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// readSQL reads the next rows of a window in the order of their numbers. It has
// three parts:
//
//	w      the snapshot that the window ends at, and the last number given
//	late   transactions that seen saw in progress and target sees ended, each with its
//	       first row that is still to be read: by the index outbox_xid
//	chunk  how far to look: from the first row there is, over a bounded range of
//	       numbers, so that no filter and no gap makes one statement read a whole log
//
// The window's rows are those of new transactions, by the index outbox_pkey, and those of
// late ones, by outbox_xid. The comparison of pairs is what keeps the planner from
// reading the latter by their numbers. In a replay, all rows from its number on are among the former.
//
// The first row returned is none of the log's: it has the number 0, and brings what the
// statement found out.
//
//	$1 seen    $2 target, or ''    $3 the last number handled    $4 replay, or a number beyond all
//	$5 start   $6 span             $7 limit                      $8 bytes
const readSQL = `
WITH w AS MATERIALIZED (
	SELECT coalesce(NULLIF($2::text, '')::pg_snapshot, pg_catalog.pg_current_snapshot()) AS target,
		pg_catalog.pg_snapshot_xmax($1::text::pg_snapshot) AS seen_xmax,
		(SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s) AS last_value
), late AS MATERIALIZED (
	SELECT x.xid, o.number
	FROM pg_catalog.pg_snapshot_xip($1::text::pg_snapshot) AS x (xid)
	CROSS JOIN LATERAL (
		SELECT o.number FROM {schema}.outbox o
		WHERE (o.xid, o.number) > (x.xid, $3::bigint) AND (o.xid, o.number) < (x.xid, $4::bigint)
		ORDER BY o.xid, o.number LIMIT 1
	) o
	WHERE pg_catalog.pg_visible_in_snapshot(x.xid, (SELECT target FROM w))
), chunk AS MATERIALIZED (
	SELECT $6::bigint - 1 + LEAST(
		(SELECT o.number FROM {schema}.outbox o WHERE o.number > $5::bigint ORDER BY o.number LIMIT 1),
		(SELECT pg_catalog.min(number) FROM late)) AS upto
), found AS (
	(SELECT e.* FROM {schema}.outbox e
	WHERE e.number > $5::bigint AND e.number <= (SELECT upto FROM chunk)
	AND (e.xid >= (SELECT seen_xmax FROM w) OR e.number >= $4::bigint)
	AND pg_catalog.pg_visible_in_snapshot(e.xid, (SELECT target FROM w)){filter}
	ORDER BY e.number LIMIT $7::bigint)
	UNION ALL
	(SELECT o.* FROM late CROSS JOIN LATERAL (
		SELECT e.* FROM {schema}.outbox e
		WHERE (e.xid, e.number) > (late.xid, $3::bigint)
		AND (e.xid, e.number) <= (late.xid, LEAST($4::bigint - 1, (SELECT upto FROM chunk))){filter}
		ORDER BY e.xid, e.number LIMIT $7::bigint
	) o ORDER BY o.number LIMIT $7::bigint)
	ORDER BY number LIMIT $7::bigint
)
SELECT 0, 0, (SELECT target::text FROM w), '', NULL, NULL, NULL, (SELECT last_value FROM w), (SELECT upto FROM chunk), NULL, true
UNION ALL
SELECT {columns}, fits
FROM (
	SELECT e.*, total <= $8::bigint AS fits, total <= $8::bigint OR total = size AS kept
	FROM (SELECT e.*, pg_catalog.sum(size) OVER (ORDER BY e.number ROWS UNBOUNDED PRECEDING) AS total
		FROM (SELECT e.*, {size} AS size FROM found e) e) e
	WHERE total - size <= $8::bigint
) e`

const (
	// spanRows is how far to look at most, in numbers, for each event that is asked
	// for: reading on is cheap, and a relay that reads few of many topics or lanes
	// should not need a round trip for each of them.
	spanRows = 16
	minSpan  = 4096
)

// Read implements outbox.RelayStore.
func (d *Database[Tx]) Read(ctx context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	if len(r.Lanes) == 0 || r.Limit <= 0 {
		return outbox.Chunk{}, fmt.Errorf("postgres: Read: %d lanes and a limit of %d: ask for one at least", len(r.Lanes), r.Limit)
	}
	// Before the statement is sent: see the proof.
	floor := d.floors.confirmed()
	w := newWindow(r, floor.number)
	if err := d.alone(ctx, "read events", w.query(r, d.sql)); err != nil {
		return outbox.Chunk{}, err
	}
	d.floors.observe(floor, w.lastValue)
	return w.chunk(r.Limit), nil
}

// window is a chunk of a window, as it is read.
type window struct {
	asked, open outbox.Position
	merges      bool // with lanes that have read up to Until
	lanes       int
	replay      int64

	row       eventRow
	fits      bool
	lastValue int64
	upto      *int64
	events    []outbox.Event
	cut       bool
}

func newWindow(r outbox.ReadRequest, floor int64) *window {
	w := &window{asked: r.Position, open: r.Position, lanes: r.AllLanes, replay: cmp.Or(r.Position.Replay, math.MaxInt64)}
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

// query has up to two conditions more than readSQL, and so one of four texts.
func (w *window) query(r outbox.ReadRequest, complete func(statement string, strength ...string) string) query {
	args := []any{
		seenText(w.asked.Seen), w.open.Target, w.asked.Last, w.replay,
		max(w.asked.Last, min(w.asked.Floor, w.replay-1)), max(minSpan, spanRows*int64(r.Limit)), int64(r.Limit), int64(max(r.MaxBytes, 0)),
	}
	filter := ""
	if len(r.Lanes) < r.AllLanes {
		filter += fmt.Sprintf(" AND e.slot %% $%d::smallint = ANY ($%d::text::smallint[])", len(args)+1, len(args)+2)
		args = append(args, int64(r.AllLanes), lanesLiteral(r.Lanes))
	}
	if len(r.Topics) > 0 {
		filter += fmt.Sprintf(" AND e.topic LIKE ANY ($%d::text::text[])", len(args)+1)
		args = append(args, topicsLiteral(r.Topics))
	}
	statement := strings.NewReplacer("{filter}", filter, "{columns}", eventColumns, "{size}", eventSize).Replace(readSQL)
	return query{complete(statement), args, w.scan}
}

func (w *window) scan(row scanner) error {
	if err := row.Scan(append(w.row.dest(), &w.fits)...); err != nil {
		return err
	}
	switch {
	case w.row.number == 0:
		w.open.Target, w.lastValue, w.upto = w.row.id, w.row.createdAt, w.row.deliverAfter
		return nil
	case !w.fits:
		w.cut = true
		if len(w.events) > 0 {
			return nil
		}
	}
	w.events = append(w.events, w.row.event(w.lanes))
	return nil
}

// chunk says how far the window was read.
func (w *window) chunk(limit int) outbox.Chunk {
	c := outbox.Chunk{Events: w.events, Window: w.open, End: w.open, More: true}
	switch {
	case w.cut || len(w.events) == limit:
		c.End.Last = w.events[len(w.events)-1].Number
	case w.upto != nil && *w.upto < w.lastValue:
		c.End.Last = *w.upto
	default:
		// Behind a window that was opened before, others may have committed.
		c.More = w.asked.Target != "" || w.merges
		c.End = outbox.Position{Seen: w.open.Target, Floor: w.open.TargetFloor}
		if w.idle() {
			c.Window, c.End = w.asked, w.asked
		}
	}
	return c
}

// idle: there was nothing to pass, so that nothing needs to be saved. Numbers above the
// floor are something: the scan would begin with them each time.
func (w *window) idle() bool {
	return len(w.events) == 0 && w.asked.Target == "" && w.asked.Replay == 0 && !w.merges && w.lastValue <= w.asked.Floor
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
