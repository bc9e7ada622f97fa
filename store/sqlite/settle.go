package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/onceward/onceward/outbox"
)

// moveLane finds the lane by the primary key. An owner who was removed with its
// relay, and a new one of the same epoch, differ in their names.
const moveLane = `
UPDATE onceward_relay_lane SET last = ?5, owner = CASE WHEN ?6 THEN NULL ELSE owner END
WHERE relay = ?1 AND lane = ?2 AND epoch = ?3 AND owner = ?4`

// putAside conflicts in the primary key.
const putAside = `
INSERT INTO onceward_aside (relay, number, lane, state, key_hash, due_at, attempts, error, set_aside_at)
VALUES (?1, ?2, ?3, ?4, ?5, ` + now + ` + ?6, ?7, ?8, ` + now + `)
ON CONFLICT (relay, number) DO UPDATE SET lane = excluded.lane, state = excluded.state, key_hash = excluded.key_hash,
    due_at = excluded.due_at, attempts = excluded.attempts, error = excluded.error`

const deleteAside = `DELETE FROM onceward_aside WHERE relay = ?1 AND number = ?2`

// Settle implements outbox.RelayStore.
func (s *Store) Settle(ctx context.Context, settlement outbox.Settlement) (outbox.Settled, error) {
	var settled outbox.Settled
	err := s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		settled = outbox.Settled{}
		if err := settle(ctx, tx, settlement, &settled); err != nil {
			return failed("settle", err)
		}
		return nil
	})
	if err != nil {
		return outbox.Settled{}, err
	}
	return settled, nil
}

func settle(ctx context.Context, tx *sql.Tx, s outbox.Settlement, settled *outbox.Settled) error {
	owned := make(map[int]bool, len(s.Lanes))
	err := each(ctx, tx, moveLane, s.Lanes, func(lane outbox.LaneProgress) []any {
		return []any{s.Relay, lane.Lane, lane.Epoch, s.Instance, lane.Position.Last, lane.Release}
	}, func(lane outbox.LaneProgress, changed bool) {
		owned[lane.Lane] = changed
		if !changed {
			settled.Lost = append(settled.Lost, lane.Lane)
		}
	})
	if err != nil {
		return err
	}
	ours := func(asides []outbox.Aside) []outbox.Aside {
		return slices.DeleteFunc(slices.Clone(asides), func(a outbox.Aside) bool { return !owned[a.Lane] })
	}
	aside, done := ours(s.Aside), ours(s.Done)

	err = each(ctx, tx, putAside, aside, func(a outbox.Aside) []any {
		var keyHash, due any
		if a.KeyHash != "" {
			keyHash = a.KeyHash
		}
		if a.State == outbox.Delayed || a.State == outbox.Retrying {
			due = max(0, microseconds(a.After))
		}
		return []any{s.Relay, a.Number, a.Lane, string(a.State), keyHash, due, a.Attempts, text(a.Error)}
	}, nil)
	if err != nil {
		return err
	}
	err = each(ctx, tx, deleteAside, done, func(a outbox.Aside) []any { return []any{s.Relay, a.Number} }, nil)
	if err != nil {
		return err
	}
	settled.Freed, err = promote(ctx, tx, s.Relay, keysOf(done))
	return err
}

// each runs a statement for each item, and tells whether it changed a row.
func each[T any](ctx context.Context, tx *sql.Tx, statement string, items []T, arguments func(T) []any, note func(item T, changed bool)) error {
	if len(items) == 0 {
		return nil
	}
	prepared, err := tx.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	defer func() { _ = prepared.Close() }()
	for _, item := range items {
		result, err := prepared.ExecContext(ctx, arguments(item)...)
		if err != nil {
			return err
		}
		changed, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if note != nil {
			note(item, changed > 0)
		}
	}
	return nil
}

func keysOf(asides []outbox.Aside) []string {
	var keys []string
	for _, aside := range asides {
		keys = append(keys, aside.KeyHash)
	}
	return keys
}

// promoteBehind has the first event behind a key be tried next, for each key of a
// JSON array that nothing else is first of. All is found in onceward_aside_key.
const promoteBehind = `
UPDATE onceward_aside SET state = 'retrying', due_at = ` + now + `
WHERE relay = ?1 AND number IN (
    SELECT (SELECT min(b.number) FROM onceward_aside AS b WHERE b.relay = ?1 AND b.state = 'behind' AND b.key_hash = wanted.value)
    FROM json_each(?2) AS wanted
    WHERE NOT EXISTS (SELECT 1 FROM onceward_aside AS f WHERE f.relay = ?1 AND f.state IN ('retrying', 'dead') AND f.key_hash = wanted.value))`

// freeKeys returns those of a JSON array that hold up nobody any more.
const freeKeys = `
SELECT wanted.value FROM json_each(?2) AS wanted
WHERE NOT EXISTS (SELECT 1 FROM onceward_aside AS a WHERE a.relay = ?1 AND a.state IN ('retrying', 'behind', 'dead') AND a.key_hash = wanted.value)`

// promote ends with no key that has something behind it and nothing to be behind
// of, and returns those that are free. Empty keys are none.
func promote(ctx context.Context, tx *sql.Tx, relay string, keys []string) ([]string, error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) > 0 && keys[0] == "" {
		keys = keys[1:]
	}
	if len(keys) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, promoteBehind, relay, string(list)); err != nil {
		return nil, err
	}
	return column[string](ctx, tx, freeKeys, relay, string(list))
}
