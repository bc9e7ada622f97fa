package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/onceward/onceward/inbox"
)

// selected is the condition that a Filter stands for. It walks the consumer's
// letters in onceward_dead_letter_consumer, oldest first.
const selected = `
WHERE consumer = ?1
  AND (?2 IS NULL OR number IN (SELECT value FROM json_each(?2)))
  AND (?3 IS NULL OR reason = ?3)
  AND (?4 IS NULL OR topic = ?4)
  AND (?5 IS NULL OR message_id = ?5)
  AND (?6 IS NULL OR key = ?6)
  AND (?7 IS NULL OR created_at >= ?7)
  AND (?8 IS NULL OR created_at < ?8)
  AND number > ?9
ORDER BY number LIMIT ?10`

const listLetters = `SELECT ` + letterColumns + ` FROM onceward_dead_letter` + selected

// listBriefly reads no payload: a large one lies on pages of its own.
const listBriefly = `SELECT ` + briefColumns + `, NULL, NULL FROM onceward_dead_letter` + selected

const discardLetters = `DELETE FROM onceward_dead_letter WHERE number IN (SELECT number FROM onceward_dead_letter` + selected + `)`

func selectedArguments(consumer string, filter inbox.Filter) ([]any, error) {
	var numbers, reason, topic, id any
	if filter.Numbers != nil {
		list, err := json.Marshal(filter.Numbers)
		if err != nil {
			return nil, err
		}
		numbers = string(list)
	}
	if filter.Reason != "" {
		reason = string(filter.Reason)
	}
	if filter.Topic != "" {
		topic = text(filter.Topic)
	}
	if filter.MessageID != "" {
		id = text(filter.MessageID)
	}
	return []any{text(consumer), numbers, reason, topic, id, filter.Key, roundedUp(filter.Since), roundedUp(filter.Before), filter.After, filter.Limit}, nil
}

// DeadLetters implements inbox.Store. It reads beside the writers.
func (s *Store) DeadLetters(ctx context.Context, consumer string, filter inbox.Filter) ([]inbox.DeadLetter, error) {
	arguments, err := selectedArguments(consumer, filter)
	if err != nil {
		return nil, failed("list dead letters", err)
	}
	list := listLetters
	if filter.Brief {
		list = listBriefly
	}
	rows, err := s.db.QueryContext(ctx, list, arguments...)
	if err != nil {
		return nil, failed("list dead letters", err)
	}
	defer func() { _ = rows.Close() }()
	var letters []inbox.DeadLetter
	for rows.Next() {
		letter, err := scanLetter(rows.Scan)
		if err != nil {
			return nil, failed("list dead letters", err)
		}
		letters = append(letters, letter)
	}
	if err := rows.Err(); err != nil {
		return nil, failed("list dead letters", err)
	}
	return letters, nil
}

// DiscardDeadLetters implements inbox.Store. It selects what DeadLetters lists.
func (s *Store) DiscardDeadLetters(ctx context.Context, consumer string, filter inbox.Filter) (int, error) {
	arguments, err := selectedArguments(consumer, filter)
	if err != nil {
		return 0, failed("discard dead letters", err)
	}
	var n int64
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, discardLetters, arguments...)
		if err == nil {
			n, err = result.RowsAffected()
		}
		if err != nil {
			return failed("discard dead letters", err)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// roundedUp is a bound of a Filter in a column of whole microseconds, in which
// nothing lies between a time and the next microsecond.
func roundedUp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return shown(t).Add(time.Microsecond - time.Nanosecond).UnixMicro()
}
