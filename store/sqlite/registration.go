package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

// querier reads, in a transaction or beside it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const insertRelay = `
INSERT INTO onceward_relay (name, lanes, topics, policy, retention, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ` + now + `)`

// insertLanes begins all lanes of a relay at one position.
const insertLanes = `
INSERT INTO onceward_relay_lane (relay, lane, epoch, last)
WITH RECURSIVE lanes (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM lanes WHERE lane + 1 < ?2)
SELECT ?1, lane, ?3, ?4 FROM lanes`

// lastRun is when somebody had a lease last, of any relay.
const lastRun = `(SELECT max(coalesce(max(coalesce(seen_at, created_at)), 0), coalesce((SELECT max(lease_until) FROM onceward_relay_instance), 0))
FROM onceward_relay)`

// standstill is for how long nobody has run any relay.
const standstill = `SELECT ` + now + ` - ` + lastRun

// seenLongAgo are the relays to note something of: all after a standstill of more than a
// minute, ?2 microseconds; else the one that somebody is about to run.
const seenLongAgo = `(?2 > 60000000 OR name = ?1 AND coalesce(seen_at, created_at) < ` + now + ` - 60000000)`

// noteSeenAgain keeps PruneLog from taking a relay for abandoned before its first lease. A
// time in which no relay at all ran does not count for any: after a standstill whoever
// comes first would else delete what the others have yet to publish.
const noteSeenAgain = `
UPDATE onceward_relay SET seen_at = CASE WHEN name = ?1 THEN ` + now + ` ELSE min(` + now + `, coalesce(seen_at, created_at) + ?2) END
WHERE ` + seenLongAgo

func noteRelay(ctx context.Context, tx *sql.Tx, relay string) error {
	var lasted int64
	if err := tx.QueryRowContext(ctx, standstill).Scan(&lasted); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, noteSeenAgain, relay, lasted)
	return err
}

// Register implements outbox.RelayStore. A relay that is registered already, and was seen
// of late, is only read.
func (s *Store) Register(ctx context.Context, r outbox.Registration) error {
	if err := outbox.CheckLanes(r.Lanes); err != nil {
		return fmt.Errorf("sqlite: register relay %.100q: %w", r.Relay, err)
	}
	err := s.register(ctx, r)
	if err == nil {
		s.registered.Store(r.Relay, r)
	}
	return err
}

func (s *Store) register(ctx context.Context, r outbox.Registration) error {
	done, err := registered(ctx, s.db, r)
	if err != nil {
		return err
	}
	if done {
		if seen, err := seenOfLate(ctx, s.db, r.Relay); seen || err != nil {
			return err
		}
	}
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := noteRelay(ctx, tx, r.Relay); err != nil {
			return failed("register relay", err)
		}
		done, err := registered(ctx, tx, r)
		if done || err != nil {
			return err
		}
		topics, err := json.Marshal(append([]string{}, r.Topics...))
		if err != nil {
			return failed("register relay", err)
		}
		if _, err := tx.ExecContext(ctx, insertRelay, r.Relay, r.Lanes, string(topics), string(r.Policy), microseconds(r.Retention)); err != nil {
			return failed("register relay", err)
		}
		var last int64
		if r.FromNow {
			if last, err = readLastNumber(ctx, tx); err != nil {
				return failed("register relay", err)
			}
		}
		if _, err := tx.ExecContext(ctx, insertLanes, r.Relay, r.Lanes, 0, last); err != nil {
			return failed("register relay", err)
		}
		return nil
	})
}

func seenOfLate(ctx context.Context, q querier, relay string) (bool, error) {
	var lasted, due int64
	err := q.QueryRowContext(ctx, standstill).Scan(&lasted)
	if err == nil {
		err = q.QueryRowContext(ctx, `SELECT count(*) FROM onceward_relay WHERE `+seenLongAgo, relay, lasted).Scan(&due)
	}
	if err != nil {
		return false, failed("register relay", err)
	}
	return due == 0, nil
}

// registered returns whether the relay is registered with the settings of r, and
// refuses other ones, and a log that gives numbers a second time.
func registered(ctx context.Context, q querier, r outbox.Registration) (bool, error) {
	if err := checkNumbers(ctx, q); err != nil {
		return false, err
	}
	recorded, err := registrationOf(ctx, q, r.Relay)
	if errors.Is(err, outbox.ErrNoRelay) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, refuseOther(r, recorded)
}

// refuseOther returns outbox.ErrSettings if a relay is not what it is asked to be. Who has
// changed what is recorded need not have sorted the topics.
func refuseOther(r, recorded outbox.Registration) error {
	var differs []string
	differ := func(setting string, recorded, given any) {
		differs = append(differs, fmt.Sprintf("%s: recorded is %v, given %v", setting, recorded, given))
	}
	if recorded.Lanes != r.Lanes {
		differ("Lanes", recorded.Lanes, r.Lanes)
	}
	if !slices.Equal(sorted(recorded.Topics), sorted(r.Topics)) {
		differ("Topics", fmt.Sprintf("%q", recorded.Topics), fmt.Sprintf("%q", r.Topics))
	}
	if recorded.Policy != r.Policy {
		differ("Policy", recorded.Policy, r.Policy)
	}
	if microseconds(recorded.Retention) != microseconds(r.Retention) {
		differ("Retention", recorded.Retention, r.Retention)
	}
	if len(differs) > 0 {
		return fmt.Errorf("sqlite: relay %q: %w: %s: start all instances with what is recorded, "+
			"or stop them all and change what is recorded (docs/outbox.md, Acting)", r.Relay, outbox.ErrSettings, strings.Join(differs, "; "))
	}
	return nil
}

// sorted is the form that topics are registered in.
func sorted(topics []string) []string { return slices.Compact(slices.Sorted(slices.Values(topics))) }

// readNumbers compares the next number with what relays have passed: numbers that
// come back would be passed unread.
const readNumbers = `
SELECT ` + lastNumber + `, (SELECT coalesce(max(number), 0) FROM onceward_event), (SELECT coalesce(max(last), 0) FROM onceward_relay_lane)`

func checkNumbers(ctx context.Context, q querier) error {
	var sequence, last, passed int64
	if err := q.QueryRowContext(ctx, readNumbers).Scan(&sequence, &last, &passed); err != nil {
		return failed("register relay", err)
	}
	if max(sequence, last) < passed {
		return fmt.Errorf("sqlite: register relay: %w: the next number is %d and relays have passed %d, so somebody changed sqlite_sequence: "+
			"give its row 'onceward_event' a seq of %d", outbox.ErrLog, max(sequence, last)+1, passed, passed)
	}
	return nil
}

const readRegistration = `SELECT lanes, topics, policy, retention FROM onceward_relay WHERE name = ?1`

// registrationOf finds a relay by the primary key.
func registrationOf(ctx context.Context, q querier, relay string) (outbox.Registration, error) {
	r := outbox.Registration{Relay: relay}
	var topics string
	var retention int64
	err := q.QueryRowContext(ctx, readRegistration, relay).Scan(&r.Lanes, &topics, &r.Policy, &retention)
	if errors.Is(err, sql.ErrNoRows) {
		return r, fmt.Errorf("sqlite: relay %.100q: %w", relay, outbox.ErrNoRelay)
	}
	if err == nil {
		err = json.Unmarshal([]byte(topics), &r.Topics)
	}
	if err != nil {
		return r, failed("read relay", err)
	}
	r.Retention = time.Duration(retention) * time.Microsecond
	return r, nil
}
