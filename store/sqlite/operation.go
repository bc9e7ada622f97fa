package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// changeLanesOf gives lanes of a JSON array the next epoch and no owner.
const changeLanesOf = `
UPDATE onceward_relay_lane SET epoch = epoch + 1, owner = NULL
WHERE relay = ?1 AND lane IN (SELECT value FROM json_each(?2))`

func changedLanes(ctx context.Context, tx *sql.Tx, relay string, lanes []int) error {
	list, err := laneList(lanes)
	if err == nil {
		_, err = tx.ExecContext(ctx, changeLanesOf, relay, list)
	}
	return err
}

// standing finds by primary keys where an event is: its slot, whether the relay
// publishes it, whether it is set aside, and under which key.
const standing = `
SELECT onceward_slot(e.key, e.number), ` + topicsMatch + `, a.state, coalesce(a.key_hash, '')
FROM onceward_event AS e
LEFT JOIN onceward_aside AS a ON a.relay = ?1 AND a.number = e.number
WHERE e.number = ?3`

const lanePosition = `SELECT last FROM onceward_relay_lane WHERE relay = ?1 AND lane = ?2`

const putSkipped = `
INSERT INTO onceward_aside (relay, number, lane, state, attempts, error, set_aside_at) VALUES (?1, ?2, ?3, 'skipped', 0, '', ` + now + `)
ON CONFLICT (relay, number) DO UPDATE SET state = 'skipped', key_hash = NULL, due_at = NULL`

// Skip implements outbox.OperatorStore. An event of other topics than the relay's
// can be skipped, to no effect.
func (s *Store) Skip(ctx context.Context, relay string, number int64) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := registrationOf(ctx, tx, relay)
		if err != nil {
			return err
		}
		if err := skip(ctx, tx, r, number); err != nil {
			return failed(fmt.Sprintf("skip event %d", number), err)
		}
		return nil
	})
}

func skip(ctx context.Context, tx *sql.Tx, r outbox.Registration, number int64) error {
	var slot int
	var matches bool
	var state sql.Null[outbox.State]
	var keyHash string
	patterns, err := globs(r.Topics)
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(ctx, standing, r.Relay, patterns, number).Scan(&slot, &matches, &state, &keyHash)
	if errors.Is(err, sql.ErrNoRows) {
		forgotten, err := forgetMissing(ctx, tx, r, number)
		if forgotten || err != nil {
			return err
		}
		return noEvent(ctx, tx, number)
	}
	if err != nil {
		return err
	}
	lane := slot % r.Lanes
	var last int64
	if err := tx.QueryRowContext(ctx, lanePosition, r.Relay, lane).Scan(&last); err != nil {
		return err
	}
	switch {
	case number > last && !matches && !state.Valid:
		return nil // The relay passes it anyhow, and would never take back what was set aside.
	case number > last:
		_, err = tx.ExecContext(ctx, putSkipped, r.Relay, number, lane)
	case state.Valid:
		_, err = tx.ExecContext(ctx, deleteAside, r.Relay, number)
	default:
		return outbox.ErrPassed
	}
	if err == nil {
		_, err = promote(ctx, tx, r.Relay, []string{keyHash})
	}
	if err == nil {
		err = changedLanes(ctx, tx, r.Relay, []int{lane})
	}
	return err
}

// noEvent says why there is no event of a number.
func noEvent(ctx context.Context, tx *sql.Tx, number int64) error {
	last, err := readLastNumber(ctx, tx)
	switch {
	case err != nil:
		return err
	case number > last:
		return fmt.Errorf("%w: number %d was not given yet, the last one is %d: take it from SetAside, Status or the log", outbox.ErrNoEvent, number, last)
	}
	return fmt.Errorf("%w: event %d was pruned", outbox.ErrNoEvent, number)
}

const deleteMissing = `DELETE FROM onceward_aside WHERE relay = ?1 AND number = ?2 RETURNING lane, coalesce(key_hash, '')`

// forgetMissing skips an event that was deleted from the log while it was set aside, and
// reports whether it was.
func forgetMissing(ctx context.Context, tx *sql.Tx, r outbox.Registration, number int64) (bool, error) {
	var lane int
	var keyHash string
	err := tx.QueryRowContext(ctx, deleteMissing, r.Relay, number).Scan(&lane, &keyHash)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		_, err = promote(ctx, tx, r.Relay, []string{keyHash})
	}
	if err == nil {
		err = changedLanes(ctx, tx, r.Relay, []int{lane})
	}
	return true, err
}

const isRunning = `SELECT EXISTS (SELECT 1 FROM onceward_relay_instance WHERE relay = ?1 AND ` + isLive + `)`

// checkStopped refuses a relay that is unknown or that an instance runs.
func checkStopped(ctx context.Context, tx *sql.Tx, relay string) error {
	if _, err := registrationOf(ctx, tx, relay); err != nil {
		return err
	}
	var running bool
	if err := tx.QueryRowContext(ctx, isRunning, relay).Scan(&running); err != nil {
		return failed("look for running instances", err)
	}
	if running {
		return fmt.Errorf("sqlite: relay %.100q: %w: stop all its instances, or wait until their leases are over", relay, outbox.ErrRunning)
	}
	return nil
}

const lastOfLanes = `SELECT min(last), max(epoch) FROM onceward_relay_lane WHERE relay = ?1`

const setLaneCount = `UPDATE onceward_relay SET lanes = ?2 WHERE name = ?1`

const deleteLanes = `DELETE FROM onceward_relay_lane WHERE relay = ?1`

const deleteInstances = `DELETE FROM onceward_relay_instance WHERE relay = ?1`

// deleteAsidesToBeRead finds them by the primary key. What an operator wants to be
// skipped still is.
const deleteAsidesToBeRead = `
DELETE FROM onceward_aside WHERE relay = ?1 AND number > ?2 AND state <> 'skipped' RETURNING coalesce(key_hash, '')`

// moveAsides looks up each event by the primary key. One that was deleted is in any lane.
const moveAsides = `
UPDATE onceward_aside AS a
SET lane = coalesce((SELECT onceward_slot(e.key, e.number) FROM onceward_event AS e WHERE e.number = a.number), a.lane) % ?2
WHERE a.relay = ?1`

// ChangeLanes implements outbox.OperatorStore. What is set aside and comes again, since a
// lane had passed it that stood before others, is not set aside any more.
func (s *Store) ChangeLanes(ctx context.Context, relay string, lanes int) error {
	if err := outbox.CheckLanes(lanes); err != nil {
		return fmt.Errorf("sqlite: change lanes of relay %.100q: %w", relay, err)
	}
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := checkStopped(ctx, tx, relay); err != nil {
			return err
		}
		if err := replaceLanes(ctx, tx, relay, lanes); err != nil {
			return failed("change lanes", err)
		}
		return nil
	})
}

func replaceLanes(ctx context.Context, tx *sql.Tx, relay string, lanes int) error {
	var last, epoch int64
	if err := tx.QueryRowContext(ctx, lastOfLanes, relay).Scan(&last, &epoch); err != nil {
		return err
	}
	keys, err := column[string](ctx, tx, deleteAsidesToBeRead, relay, last)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		statement string
		arguments []any
	}{
		{deleteInstances, []any{relay}},
		{deleteLanes, []any{relay}},
		{insertLanes, []any{relay, lanes, epoch + 1, last}},
		{setLaneCount, []any{relay, lanes}},
		{moveAsides, []any{relay, lanes}},
	} {
		if _, err := tx.ExecContext(ctx, step.statement, step.arguments...); err != nil {
			return err
		}
	}
	_, err = promote(ctx, tx, relay, keys)
	return err
}

const deleteAsides = `DELETE FROM onceward_aside WHERE relay = ?1`

const deleteRelay = `DELETE FROM onceward_relay WHERE name = ?1`

// Remove implements outbox.OperatorStore.
func (s *Store) Remove(ctx context.Context, relay string) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := checkStopped(ctx, tx, relay); err != nil {
			return err
		}
		for _, statement := range []string{deleteAsides, deleteInstances, deleteLanes, deleteRelay} {
			if _, err := tx.ExecContext(ctx, statement, relay); err != nil {
				return failed("remove relay", err)
			}
		}
		return nil
	})
}
