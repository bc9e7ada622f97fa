package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/onceward/onceward/outbox"
)

// selectedAsides is the condition that a Filter stands for. It walks what the relay
// has set aside by the primary key, oldest first.
const selectedAsides = `
FROM onceward_aside AS a LEFT JOIN onceward_event AS e ON e.number = a.number
WHERE a.relay = ?1
  AND (?2 IS NULL OR a.number IN (SELECT value FROM json_each(?2)))
  AND a.number > ?3
  AND (?4 IS NULL OR a.state = ?4)
  AND (?5 IS NULL OR e.topic = ?5)
  AND (?6 IS NULL OR e.id = ?6)`

const oldestAsides = ` ORDER BY a.number LIMIT ?7`

const asideColumns = `a.lane, a.state, a.key_hash, a.due_at - ` + now + `, a.attempts, a.error, a.due_at, a.set_aside_at, ` + asideEvent

const listAsides = `SELECT ` + asideColumns + `, ` + eventContent + selectedAsides + oldestAsides

// listAsidesBriefly reads no payload: a large one lies on pages of its own.
const listAsidesBriefly = `SELECT ` + asideColumns + selectedAsides + oldestAsides

const selectDead = `SELECT a.number, a.lane, coalesce(a.key_hash, '') ` + selectedAsides + ` AND a.state = 'dead'` + oldestAsides

// These find the numbers of a JSON array by the primary key.
const (
	redriveAsides = `
UPDATE onceward_aside
SET state = CASE WHEN key_hash IS NOT NULL AND (SELECT policy FROM onceward_relay WHERE name = ?1) = 'park_key' THEN 'retrying' ELSE 'delayed' END,
    attempts = 0, due_at = ` + now + `
WHERE relay = ?1 AND number IN (SELECT value FROM json_each(?2))`

	// skipToCome has the lane pass what it would read again, since an older event is still to be published.
	skipToCome = `
UPDATE onceward_aside SET state = 'skipped', key_hash = NULL, due_at = NULL
WHERE relay = ?1 AND number IN (SELECT value FROM json_each(?2))
  AND number > (SELECT l.last FROM onceward_relay_lane AS l WHERE l.relay = ?1 AND l.lane = onceward_aside.lane)
  AND EXISTS (SELECT 1 FROM onceward_event AS e WHERE e.number = onceward_aside.number)`

	discardAsides = `DELETE FROM onceward_aside WHERE relay = ?1 AND number IN (SELECT value FROM json_each(?2)) AND state <> 'skipped'`
)

func asideArguments(relay string, filter outbox.Filter) ([]any, error) {
	var numbers, state, topic, id any
	if filter.Numbers != nil {
		list, err := json.Marshal(filter.Numbers)
		if err != nil {
			return nil, err
		}
		numbers = string(list)
	}
	if filter.State != "" {
		state = string(filter.State)
	}
	if filter.Topic != "" {
		topic = filter.Topic
	}
	if filter.MessageID != "" {
		id = filter.MessageID
	}
	return []any{relay, numbers, filter.After, state, topic, id, filter.Limit}, nil
}

// SetAside implements outbox.OperatorStore. It reads beside the writers.
func (s *Store) SetAside(ctx context.Context, relay string, filter outbox.Filter) ([]outbox.AsideEvent, error) {
	arguments, err := asideArguments(relay, filter)
	if err != nil {
		return nil, failed("list what is set aside", err)
	}
	var asides []outbox.AsideEvent
	err = s.read(ctx, func(tx *sql.Tx) error {
		r, err := registrationOf(ctx, tx, relay)
		if err != nil {
			return err
		}
		if asides, err = listedAsides(ctx, tx, r.Lanes, filter.Brief, arguments); err != nil {
			return failed("list what is set aside", err)
		}
		return nil
	})
	return asides, err
}

func listedAsides(ctx context.Context, q querier, lanes int, brief bool, arguments []any) ([]outbox.AsideEvent, error) {
	list := listAsides
	if brief {
		list = listAsidesBriefly
	}
	rows, err := q.QueryContext(ctx, list, arguments...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var asides []outbox.AsideEvent
	for rows.Next() {
		var a asideRow
		var e eventRow
		var due *int64
		var setAside int64
		columns := e.whole()
		if brief {
			columns = e.brief()
		}
		err := rows.Scan(append([]any{&a.Lane, &a.State, &a.keyHash, &a.after, &a.Attempts, &a.Error, &due, &setAside, &a.missing}, columns...)...)
		if err != nil {
			return nil, err
		}
		a.Number = e.Number
		listed := outbox.AsideEvent{Event: a.event(&e, lanes), Aside: a.aside(), SetAsideAt: time.UnixMicro(setAside).UTC()}
		if due != nil {
			listed.Due = time.UnixMicro(*due).UTC()
		}
		asides = append(asides, listed)
	}
	return asides, rows.Err()
}

// Redrive implements outbox.OperatorStore.
func (s *Store) Redrive(ctx context.Context, relay string, filter outbox.Filter) (int, error) {
	return s.changeDead(ctx, "redrive", relay, filter, redriveAsides)
}

// Discard implements outbox.OperatorStore.
func (s *Store) Discard(ctx context.Context, relay string, filter outbox.Filter) (int, error) {
	return s.changeDead(ctx, "discard", relay, filter, skipToCome, discardAsides)
}

// changeDead runs statements on selected dead events.
func (s *Store) changeDead(ctx context.Context, doing, relay string, filter outbox.Filter, statements ...string) (int, error) {
	arguments, err := asideArguments(relay, filter)
	if err != nil {
		return 0, failed(doing, err)
	}
	n := 0
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := registrationOf(ctx, tx, relay); err != nil {
			return err
		}
		var err error
		if n, err = changeSelected(ctx, tx, relay, arguments, statements); err != nil {
			return failed(doing, err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func changeSelected(ctx context.Context, tx *sql.Tx, relay string, arguments []any, statements []string) (int, error) {
	var numbers []int64
	var lanes []int
	var keys []string
	err := scanAll(ctx, tx, selectDead, arguments, func(scan func(...any) error) error {
		var number int64
		var lane int
		var key string
		err := scan(&number, &lane, &key)
		numbers, lanes, keys = append(numbers, number), append(lanes, lane), append(keys, key)
		return err
	})
	if err != nil || len(numbers) == 0 {
		return 0, err
	}
	list, err := json.Marshal(numbers)
	if err != nil {
		return 0, err
	}
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement, relay, string(list)); err != nil {
			return 0, err
		}
	}
	if _, err := promote(ctx, tx, relay, keys); err != nil {
		return 0, err
	}
	return len(numbers), changedLanes(ctx, tx, relay, lanes)
}
