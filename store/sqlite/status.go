package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

const relayNames = `SELECT name FROM onceward_relay ORDER BY name`

const readSeen = `SELECT coalesce(seen_at, 0) FROM onceward_relay WHERE name = ?1`

const readInstances = `SELECT name, lease_until - ` + now + ` FROM onceward_relay_instance WHERE relay = ?1 ORDER BY name`

const readLanes = `SELECT lane, coalesce(owner, ''), epoch, last FROM onceward_relay_lane WHERE relay = ?1 ORDER BY lane`

// countAsides walks all that the relay has set aside, by the primary key.
const countAsides = `SELECT lane, state, count(*), min(number) FROM onceward_aside WHERE relay = ?1 GROUP BY lane, state`

// eventsToCome walks the log by the primary key and reads no payload.
const eventsToCome = `
SELECT e.number, onceward_slot(e.key, e.number) % ?3, ` + now + ` - e.created_at FROM onceward_event AS e
WHERE e.number > ?1 AND ` + topicsMatch + ` ORDER BY e.number`

// Relays implements outbox.OperatorStore. It reads beside the writers, and of the
// log what the last lane has yet to pass.
func (s *Store) Relays(ctx context.Context, countLimit int) ([]outbox.RelayStatus, error) {
	var relays []outbox.RelayStatus
	err := s.read(ctx, func(tx *sql.Tx) error {
		names, err := column[string](ctx, tx, relayNames)
		if err != nil {
			return failed("read relays", err)
		}
		for _, name := range names {
			r, err := registrationOf(ctx, tx, name)
			if err != nil {
				return err
			}
			status, err := statusOf(ctx, tx, r, countLimit)
			if err != nil {
				return failed("read relays", err)
			}
			relays = append(relays, status)
		}
		return nil
	})
	return relays, err
}

func statusOf(ctx context.Context, q querier, r outbox.Registration, countLimit int) (outbox.RelayStatus, error) {
	status := outbox.RelayStatus{Registration: r}
	var seen int64
	if err := q.QueryRowContext(ctx, readSeen, r.Relay).Scan(&seen); err != nil {
		return status, err
	}
	if seen != 0 {
		status.SeenAt = time.UnixMicro(seen).UTC()
	}
	err := scanAll(ctx, q, readInstances, []any{r.Relay}, func(scan func(...any) error) error {
		var i outbox.Instance
		var lease int64
		err := scan(&i.Name, &lease)
		i.Lease = duration(lease)
		status.Instances = append(status.Instances, i)
		return err
	})
	if err != nil {
		return status, err
	}
	var last []int64 // of each lane
	err = scanAll(ctx, q, readLanes, []any{r.Relay}, func(scan func(...any) error) error {
		l := outbox.LaneStatus{Aside: map[outbox.State]int{}}
		var n int64
		err := scan(&l.Lane, &l.Owner, &l.Epoch, &n)
		status.Status, last = append(status.Status, l), append(last, n)
		return err
	})
	if err != nil {
		return status, err
	}
	err = scanAll(ctx, q, countAsides, []any{r.Relay}, func(scan func(...any) error) error {
		var lane, n int
		var state outbox.State
		var first int64
		if err := scan(&lane, &state, &n, &first); err != nil {
			return err
		}
		status.Status[lane].Aside[state] = n
		if state == outbox.Retrying && r.Policy == outbox.BlockLane {
			status.Status[lane].HeldBy = first
		}
		return nil
	})
	if err != nil {
		return status, err
	}
	return status, countToCome(ctx, q, r, countLimit, last, status.Status)
}

// countToCome counts the events of each lane that it has not passed.
func countToCome(ctx context.Context, q querier, r outbox.Registration, countLimit int, last []int64, lanes []outbox.LaneStatus) error {
	patterns, err := globs(r.Topics)
	if err != nil {
		return err
	}
	counting := len(lanes)
	err = scanAll(ctx, q, eventsToCome, []any{slices.Min(last), patterns, r.Lanes}, func(scan func(...any) error) error {
		var number, age int64
		var lane int
		if err := scan(&number, &lane, &age); err != nil {
			return err
		}
		l := &lanes[lane]
		if number <= last[lane] || l.Events == countLimit {
			return nil
		}
		if l.Events == 0 {
			l.Age = max(0, duration(age))
		}
		if l.Events++; l.Events == countLimit {
			if counting--; counting == 0 {
				return errEnough
			}
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// errEnough ends a scan before its last row.
var errEnough = errors.New("enough was read")

// scanAll has each row of a query scanned.
func scanAll(ctx context.Context, q querier, query string, arguments []any, each func(scan func(...any) error) error) error {
	rows, err := q.QueryContext(ctx, query, arguments...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
