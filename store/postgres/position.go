package postgres

import (
	"cmp"

	"github.com/onceward/onceward/outbox"
)

// nothingSeen is the snapshot in which no row is visible. Positions say it by an
// empty text, which stands for the start of the log in every store.
const nothingSeen = "1:1:"

// positionRow reads the columns seen, floor, target, target_floor, last and replay, as text
// those that are snapshots.
type positionRow struct {
	outbox.Position
}

func (r *positionRow) dest() []any {
	return []any{&r.Seen, &r.Floor, &r.Target, &r.TargetFloor, &r.Last, &r.Replay}
}

func (r *positionRow) position() outbox.Position {
	if r.Seen == nothingSeen {
		r.Seen = ""
	}
	return r.Position
}

func seenText(seen string) string { return cmp.Or(seen, nothingSeen) }

// passedSQL is true if the lane l has passed the row e: it is visible in what the
// lane has seen and is not to be handled again, or it lies in the part of the open
// window that was handled.
//
//nolint:gosec // No password.
const passedSQL = `(pg_catalog.pg_visible_in_snapshot(e.xid, l.seen) AND (l.replay = 0 OR e.number < l.replay)
	OR l.target IS NOT NULL AND e.number <= l.last AND pg_catalog.pg_visible_in_snapshot(e.xid, l.target))`

// matchesSQL is true if the relay r publishes the topic of the row e. A backslash stands in
// an escape string: what it means in others is a setting.
const matchesSQL = `(r.topics = '{}' OR EXISTS (
	SELECT FROM pg_catalog.unnest(r.topics) AS p (pattern)
	WHERE e.topic LIKE pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(
		p.pattern, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%')))`
