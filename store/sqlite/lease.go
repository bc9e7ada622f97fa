package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

// isLive is the condition that an instance's lease is not over.
const isLive = `lease_until > ` + now

const prolongLease = `
INSERT INTO onceward_relay_instance (relay, name, lease_until) VALUES (?1, ?2, ` + now + ` + ?3)
ON CONFLICT (relay, name) DO UPDATE SET lease_until = excluded.lease_until`

const noteSeen = `UPDATE onceward_relay SET seen_at = ` + now + ` WHERE name = ?1`

// forgetInstances removes those that nobody asks about any more. They never come
// back: each process has a name of its own.
const forgetInstances = `DELETE FROM onceward_relay_instance WHERE relay = ?1 AND lease_until < ` + now + ` - 86400000000`

// liveInstances ranks them by name. The one that asks is among them, even if its lease
// was over by now: the clock goes on between two statements.
const liveInstances = `SELECT name FROM onceward_relay_instance WHERE relay = ?1 AND (` + isLive + ` OR name = ?2) ORDER BY name`

// takeLanes takes free lanes, as many as are missing from the share ?3. All lanes
// of the relay are read by the primary key.
const takeLanes = `
UPDATE onceward_relay_lane SET owner = ?2, epoch = epoch + 1
WHERE relay = ?1 AND lane IN (
    SELECT lane FROM onceward_relay_lane
    WHERE relay = ?1 AND (owner IS NULL
        OR owner NOT IN (SELECT name FROM onceward_relay_instance WHERE relay = ?1 AND ` + isLive + `))
    ORDER BY lane
    LIMIT max(0, ?3 - (SELECT count(*) FROM onceward_relay_lane WHERE relay = ?1 AND owner = ?2)))`

const ownedLanes = `SELECT lane, epoch, last FROM onceward_relay_lane WHERE relay = ?1 AND owner = ?2 ORDER BY lane`

// Lease implements outbox.RelayStore. Whoever was registered with other lanes or topics than
// are recorded now would pass events that are nobody's, with another policy overtake.
func (s *Store) Lease(ctx context.Context, relay, instance string, lease time.Duration) (outbox.Lease, error) {
	if err := outbox.CheckLease(lease); err != nil {
		return outbox.Lease{}, fmt.Errorf("sqlite: lease lanes of relay %.100q: %w", relay, err)
	}
	var l outbox.Lease
	err := s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := registrationOf(ctx, tx, relay)
		if err != nil {
			return err
		}
		if known, ok := s.registered.Load(relay); ok {
			registered, _ := known.(outbox.Registration)
			registered.Retention = r.Retention // which is no instance's business
			if err := refuseOther(registered, r); err != nil {
				return err
			}
		}
		if l, err = leaseLanes(ctx, tx, r, instance, lease); err != nil {
			return failed("lease lanes", err)
		}
		return nil
	})
	if err != nil {
		return outbox.Lease{}, err
	}
	return l, nil
}

func leaseLanes(ctx context.Context, tx *sql.Tx, r outbox.Registration, instance string, lease time.Duration) (outbox.Lease, error) {
	l := outbox.Lease{}
	if err := noteRelay(ctx, tx, r.Relay); err != nil { // before it has a lease again
		return l, err
	}
	if _, err := tx.ExecContext(ctx, prolongLease, r.Relay, instance, microseconds(lease)); err != nil {
		return l, err
	}
	for _, statement := range []string{noteSeen, forgetInstances} {
		if _, err := tx.ExecContext(ctx, statement, r.Relay); err != nil {
			return l, err
		}
	}
	live, err := column[string](ctx, tx, liveInstances, r.Relay, instance)
	if err != nil {
		return l, err
	}
	l.Share = r.Lanes / len(live)
	if slices.Index(live, instance) < r.Lanes%len(live) {
		l.Share++
	}
	if _, err := tx.ExecContext(ctx, takeLanes, r.Relay, instance, l.Share); err != nil {
		return l, err
	}
	rows, err := tx.QueryContext(ctx, ownedLanes, r.Relay, instance)
	if err != nil {
		return l, err
	}
	defer func() { _ = rows.Close() }()
	var numbers []int
	for rows.Next() {
		var lane outbox.OwnedLane
		if err := rows.Scan(&lane.Lane, &lane.Epoch, &lane.Position.Last); err != nil {
			return l, err
		}
		l.Lanes = append(l.Lanes, lane)
		numbers = append(numbers, lane.Lane)
	}
	if err := rows.Err(); err != nil {
		return l, err
	}
	list, err := laneList(numbers)
	if err != nil {
		return l, err
	}
	l.Due, err = dueAfter(ctx, tx, r.Relay, list, math.MinInt64)
	return l, err
}

const endLease = `DELETE FROM onceward_relay_instance WHERE relay = ?1 AND name = ?2`

const freeLanes = `UPDATE onceward_relay_lane SET owner = NULL WHERE relay = ?1 AND owner = ?2`

// Leave implements outbox.RelayStore.
func (s *Store) Leave(ctx context.Context, relay, instance string) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, statement := range []string{endLease, freeLanes} {
			if _, err := tx.ExecContext(ctx, statement, relay, instance); err != nil {
				return failed("leave relay", err)
			}
		}
		return nil
	})
}

// column returns the values of a query with one column.
func column[T any](ctx context.Context, q querier, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var values []T
	for rows.Next() {
		var value T
		if err := rows.Scan(&value); err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, rows.Err()
}
