package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onceward/onceward/outbox"
)

// setLanesBack gives every lane the next epoch and no owner: owners learn of it.
const setLanesBack = `
UPDATE onceward_relay_lane SET last = min(last, ?2), epoch = epoch + 1, owner = NULL WHERE relay = ?1`

// deleteAsidesBehind finds them by the primary key. Of events that are read again
// nothing is kept.
const deleteAsidesBehind = `DELETE FROM onceward_aside WHERE relay = ?1 AND number > ?2 RETURNING coalesce(key_hash, '')`

// Replay implements outbox.OperatorStore.
func (s *Store) Replay(ctx context.Context, relay string, from int64) error {
	last := max(from, 1) - 1
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := registrationOf(ctx, tx, relay); err != nil {
			return err
		}
		given, err := readLastNumber(ctx, tx)
		if err == nil && last > given {
			err = noEvent(ctx, tx, from)
		}
		if err != nil {
			return failed("replay", err)
		}
		if _, err := tx.ExecContext(ctx, setLanesBack, relay, last); err != nil {
			return failed("replay", err)
		}
		keys, err := column[string](ctx, tx, deleteAsidesBehind, relay, last)
		if err == nil {
			_, err = promote(ctx, tx, relay, keys)
		}
		if err != nil {
			return failed("replay", err)
		}
		return nil
	})
}

// firstSince walks the log from its beginning. The times are in order but for
// steps of the clock, so that nothing but a walk is exact.
const firstSince = `
SELECT coalesce((SELECT number FROM onceward_event WHERE created_at >= ?1 ORDER BY number LIMIT 1), ` + lastNumber + ` + 1)`

// FirstSince implements outbox.OperatorStore.
func (s *Store) FirstSince(ctx context.Context, t time.Time) (int64, error) {
	var number int64
	if err := s.db.QueryRowContext(ctx, firstSince, shown(t).Add(time.Microsecond-time.Nanosecond).UnixMicro()).Scan(&number); err != nil {
		return 0, failed("find the first event since a time", err)
	}
	return number, nil
}

// Holders implements outbox.OperatorStore. It returns none: a writer keeps others
// from writing, and SQLite does not tell who it is.
func (*Store) Holders(context.Context) ([]outbox.Holder, error) { return nil, nil }
