package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/onceward/onceward/inbox"
)

const insertLetter = `
INSERT INTO onceward_dead_letter
    (consumer, reason, error, attempts, message_id, source, topic, key, payload, headers, time, position, parks_key, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ` + now + `)`

// AddDeadLetters implements inbox.Store.
func (s *Store) AddDeadLetters(ctx context.Context, tx *sql.Tx, letters []inbox.DeadLetter) error {
	statement, err := tx.PrepareContext(ctx, insertLetter)
	if err != nil {
		return failed("add dead letters", err)
	}
	defer func() { _ = statement.Close() }()
	for _, letter := range letters {
		m := letter.Message
		headers, err := encodeHeaders(m.Headers)
		if err != nil {
			return failed("add dead letter", err)
		}
		_, err = statement.ExecContext(ctx, text(letter.Consumer), string(letter.Reason), text(letter.Error), letter.Attempts,
			text(m.ID), text(m.Source), text(m.Topic), m.Key, m.Payload, headers, timestamp(m.Time), text(m.Position), letter.ParksKey)
		if err != nil {
			return failed("add dead letter", err)
		}
	}
	return nil
}

// isParked asks for each key of a JSON array of hex strings and nulls whether a
// letter parks it: one look into onceward_dead_letter_parked for each.
const isParked = `
SELECT EXISTS (
    SELECT 1 FROM onceward_dead_letter
    WHERE parks_key AND consumer = ?2 AND topic = ?3 AND key = unhex(wanted.value))
FROM json_each(?1) AS wanted ORDER BY wanted.id`

// ParkedKeys implements inbox.Store. A nil key is never parked. tx holds the
// write lock, so nothing can be parked or freed until it ends.
func (s *Store) ParkedKeys(ctx context.Context, tx *sql.Tx, consumer, topic string, keys [][]byte) ([]bool, error) {
	wanted := make([]any, len(keys))
	for i, key := range keys {
		if key != nil {
			wanted[i] = hex.EncodeToString(key)
		}
	}
	list, err := json.Marshal(wanted)
	if err != nil {
		return nil, failed("look up parked keys", err)
	}
	rows, err := tx.QueryContext(ctx, isParked, string(list), text(consumer), text(topic))
	if err != nil {
		return nil, failed("look up parked keys", err)
	}
	defer func() { _ = rows.Close() }()
	parked := make([]bool, 0, len(keys))
	for rows.Next() {
		var is bool
		if err := rows.Scan(&is); err != nil {
			return nil, failed("look up parked keys", err)
		}
		parked = append(parked, is)
	}
	if err := rows.Err(); err != nil {
		return nil, failed("look up parked keys", err)
	}
	return parked, nil
}

const briefColumns = `number, consumer, reason, error, attempts, message_id, source, topic, key, time, position, parks_key, created_at`

const letterColumns = briefColumns + `, payload, headers`

func scanLetter(scan func(...any) error) (inbox.DeadLetter, error) {
	var l inbox.DeadLetter
	m := &l.Message
	var key, payload blob
	var headers sql.Null[string]
	var at sql.Null[int64]
	var created int64
	err := scan(&l.Number, &l.Consumer, &l.Reason, &l.Error, &l.Attempts, &m.ID, &m.Source, &m.Topic, &key,
		&at, &m.Position, &l.ParksKey, &created, &payload, &headers)
	if err != nil {
		return l, err
	}
	m.Key, m.Payload = key, payload
	if at.Valid {
		m.Time = time.UnixMicro(at.V).UTC()
	}
	l.CreatedAt = time.UnixMicro(created).UTC()
	if headers.Valid {
		m.Headers, err = decodeHeaders(headers.V)
	}
	return l, err
}

// storedHeader is a header in JSON, which shows []byte in base64 and tells nil
// from empty. The name is bytes as well: it need not be UTF-8.
type storedHeader struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

func encodeHeaders(headers []inbox.Header) (string, error) {
	stored := make([]storedHeader, len(headers))
	for i, h := range headers {
		stored[i] = storedHeader{[]byte(h.Name), h.Value}
	}
	list, err := json.Marshal(stored)
	return string(list), err
}

func decodeHeaders(list string) ([]inbox.Header, error) {
	var stored []storedHeader
	if err := json.Unmarshal([]byte(list), &stored); err != nil || len(stored) == 0 {
		return nil, err
	}
	headers := make([]inbox.Header, len(stored))
	for i, h := range stored {
		headers[i] = inbox.Header{Name: string(h.Name), Value: h.Value}
	}
	return headers, nil
}

// timestamp is a time in a column; the zero time is NULL. A producer's clock can
// say anything: what no calendar shows is moved to the nearest year that one does.
func timestamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return shown(t).UnixMicro()
}

// shown keeps a time within the years 1 to 9999. Microseconds reach further, but
// not as far as a time.Time.
func shown(t time.Time) time.Time {
	t = t.UTC()
	switch {
	case t.Year() < 1:
		return time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	case t.Year() > 9999:
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return t
}
