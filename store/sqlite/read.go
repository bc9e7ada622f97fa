package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// lastNumber is the last number that was given, also if its row is gone. It is
// part of each transaction that gave numbers, so that none is larger in what its
// readers see.
const lastNumber = `coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'onceward_event'), 0)`

func readLastNumber(ctx context.Context, q querier) (last int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT `+lastNumber).Scan(&last)
	return last, err
}

// readEvents walks the log by the primary key. Lanes and topics are JSON arrays, or
// NULL for all. GLOB looks at every character, case included.
const readEvents = `
SELECT ` + eventColumns + ` FROM onceward_event AS e
WHERE e.number > ?1 AND e.number <= ?3
  AND (?4 IS NULL OR onceward_slot(e.key, e.number) % ?5 IN (SELECT value FROM json_each(?4)))
  AND ` + topicsMatch + `
ORDER BY e.number LIMIT ?6`

const topicsMatch = `(?2 IS NULL OR EXISTS (SELECT 1 FROM json_each(?2) AS pattern WHERE e.topic GLOB pattern.value))`

// Read implements outbox.RelayStore. It reads beside the writers. All up to the
// last number has committed or never will, so a position is a number and a
// window is what lies behind it: Last, and nothing else.
func (s *Store) Read(ctx context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	chunk := outbox.Chunk{Window: r.Position, End: r.Position}
	top, err := readLastNumber(ctx, s.db)
	if err != nil {
		return outbox.Chunk{}, failed("read events", err)
	}
	if r.Until != (outbox.Position{}) {
		top = min(top, r.Until.Last)
	}
	if top <= r.Position.Last {
		return chunk, nil
	}

	var lanes sql.Null[string]
	if lanes.Valid = len(r.Lanes) < r.AllLanes; lanes.Valid {
		if lanes.V, err = laneList(r.Lanes); err != nil {
			return outbox.Chunk{}, failed("read events", err)
		}
	}
	patterns, err := globs(r.Topics)
	if err != nil {
		return outbox.Chunk{}, failed("read events", err)
	}
	rows, err := s.db.QueryContext(ctx, readEvents, r.Position.Last, patterns, top, lanes, r.AllLanes, r.Limit)
	if err != nil {
		return outbox.Chunk{}, failed("read events", err)
	}
	defer func() { _ = rows.Close() }()
	bytes := 0
	for !chunk.More && rows.Next() {
		var row eventRow
		if err := rows.Scan(row.whole()...); err != nil {
			return outbox.Chunk{}, failed("read events", err)
		}
		e := row.event(r.AllLanes)
		bytes += e.Size()
		if bytes > r.MaxBytes && len(chunk.Events) > 0 {
			chunk.More = true
			break
		}
		chunk.Events = append(chunk.Events, e)
		chunk.More = len(chunk.Events) == r.Limit
	}
	if err := rows.Err(); err != nil {
		return outbox.Chunk{}, failed("read events", err)
	}
	if chunk.More {
		chunk.End = chunk.Window.Behind(chunk.Events[len(chunk.Events)-1])
	} else {
		chunk.End.Last = top
	}
	return chunk, nil
}

// globs turns topic patterns into patterns of GLOB, in which ? and [ are no
// characters like others. No patterns are NULL: all topics.
func globs(topics []string) (sql.Null[string], error) {
	if len(topics) == 0 {
		return sql.Null[string]{}, nil
	}
	patterns := make([]string, len(topics))
	escape := strings.NewReplacer("?", "[?]", "[", "[[]")
	for i, topic := range topics {
		patterns[i] = escape.Replace(topic)
	}
	list, err := json.Marshal(patterns)
	return sql.Null[string]{V: string(list), Valid: true}, err
}
