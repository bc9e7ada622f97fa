package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// insertEvents is followed by a row of values for each event.
const insertEvents = `INSERT INTO onceward_event (topic, id, deliver_after, key, headers, payload) VALUES `

const eventValues = `(?, ?, ?, ?, ?, ?)`

// eventsPerInsert keeps a statement well below the 32,766 values it may have.
const eventsPerInsert = 500

// Append implements outbox.Store. tx is a transaction on this store's file, begun
// through [Store.DB] or lent by Atomic. More than 500 events take several
// statements, in a savepoint.
func (s *Store) Append(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
	if err := checkOpen(ctx, tx); err != nil {
		return appendFailed(err)
	}
	if len(messages) <= eventsPerInsert {
		if err := insert(ctx, tx, messages); err != nil {
			return appendFailed(err)
		}
		s.appended.Raise()
		return nil
	}
	if _, err := tx.ExecContext(ctx, `SAVEPOINT onceward_append`); err != nil {
		return appendFailed(err)
	}
	for chunk := range slices.Chunk(messages, eventsPerInsert) {
		if err := insert(ctx, tx, chunk); err != nil {
			// Fails if SQLite has rolled back more than that already.
			_, _ = tx.ExecContext(context.WithoutCancel(ctx), `ROLLBACK TO onceward_append; RELEASE onceward_append`)
			return appendFailed(err)
		}
	}
	if _, err := tx.ExecContext(ctx, `RELEASE onceward_append`); err != nil {
		return appendFailed(err)
	}
	s.appended.Raise()
	return nil
}

func insert(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
	if len(messages) == 0 {
		return nil
	}
	values := make([]any, 0, 6*len(messages))
	for _, m := range messages {
		headers, err := encodeEventHeaders(m.Headers)
		if err != nil {
			return err
		}
		if err := outbox.CheckSize(int64(len(m.Key) + len(m.Payload) + len(headers.V))); err != nil {
			return err
		}
		values = append(values, m.Topic, m.ID, roundedUp(m.DeliverAfter), m.Key, headers, m.Payload)
	}
	_, err := tx.ExecContext(ctx, insertEvents+eventValues+strings.Repeat(", "+eventValues, len(messages)-1), values...)
	return err
}

// checkOpen refuses a transaction that SQLite has ended by itself, which the driver
// does not notice: each statement after it would be committed alone, and an event
// be published whose work was rolled back. In a transaction BEGIN is an error that
// changes nothing.
func checkOpen(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `BEGIN`)
	switch {
	case err == nil:
		_, err = tx.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		return errors.Join(idempotency.ErrTransactionEnded, err)
	case strings.Contains(err.Error(), "within a transaction"):
		return nil
	}
	return err
}

func appendFailed(err error) error {
	if isEnded(err) {
		return fmt.Errorf("sqlite: append events: %w: %w", idempotency.ErrTransactionEnded, err)
	}
	return failed("append events", err)
}

// Appended implements outbox.RelayStore. It is raised for transactions of this process.
func (s *Store) Appended() *outbox.Signal { return &s.appended }
