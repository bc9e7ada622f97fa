package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// appendOneSQL writes an event. Its number, transaction and time are defaults of the
// columns: see floors for what hangs on them.
//
// Both statements write nothing if the log is not where it was, unless that was looked into
// in this transaction ($7).
const appendOneSQL = `
INSERT INTO {schema}.outbox (message_id, topic, key, payload, headers, deliver_after)
SELECT $1::text, $2::text, $3::bytea, $4::bytea, $5::text::json, $6::text::timestamptz
WHERE $7::boolean OR ` + unmovedSQL

// appendManySQL writes many events with one statement, whatever their number, so that
// connections prepare it once. The numbers are given in the order of the rows. An empty text is
// NULL: with array_nulls off, NULL in an array is a word like any other.
const appendManySQL = `
INSERT INTO {schema}.outbox (message_id, topic, key, payload, headers, deliver_after)
SELECT m.message_id, m.topic, NULLIF(m.key, '')::bytea, NULLIF(m.payload, '')::bytea, NULLIF(m.headers, '')::json,
	NULLIF(m.deliver_after, '')::timestamptz
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) WITH ORDINALITY
	AS m (message_id, topic, key, payload, headers, deliver_after, place)
WHERE $7::boolean OR ` + unmovedSQL + `
ORDER BY m.place`

// Append implements outbox.Store.
//
// A failed statement leaves the transaction good for nothing but a rollback.
func (d *Database[Tx]) Append(ctx context.Context, tx Tx, messages []outbox.Message) error {
	if d.invalid != nil || len(messages) == 0 {
		return d.invalid
	}
	r := d.transport.on(tx)
	statement, args, err := appendSQL(messages)
	if err != nil {
		return fmt.Errorf("postgres: write events: %w", err)
	}
	known, _ := d.home.Load().(string)
	for looked := known == ""; ; looked = true {
		if looked {
			unmoved, err := d.lookHome(ctx, r)
			if err != nil {
				return appendError(ctx, err)
			}
			if known != "" && unmoved == known {
				break // It was not restored: a trigger of the user's let no row pass, and must not see them twice.
			}
		}
		written, err := r.exec(ctx, d.sql(statement), append(args, looked)...)
		if err != nil {
			return appendError(ctx, err)
		}
		if written > 0 || looked {
			break
		}
	}
	d.appended.Raise()
	return nil
}

// Appended implements outbox.RelayStore.
func (d *Database[Tx]) Appended() *outbox.Signal { return &d.appended }

func appendSQL(messages []outbox.Message) (statement string, args []any, err error) {
	if len(messages) == 1 {
		m := &messages[0]
		var headers any
		text, err := headersOf(m)
		if err != nil {
			return "", nil, err
		}
		if text != "" {
			headers = text
		}
		return appendOneSQL, []any{m.ID, m.Topic, bytesArg(m.Key), bytesArg(m.Payload), headers, timeArg(m.DeliverAfter)}, nil
	}
	var ids, topics, keys, payloads, headers, dues arrayLiteral
	payload := 0
	for i := range messages {
		payload += hex.EncodedLen(len(messages[i].Payload)) + len(`"\\x",`)
	}
	payloads.text = make([]byte, 0, payload+len(`{}`)) // at once: growing copies megabytes again and again
	for i := range messages {
		m := &messages[i]
		text, err := headersOf(m)
		if err != nil {
			return "", nil, err
		}
		due, _ := timeArg(m.DeliverAfter).(string)
		ids.addText(m.ID)
		topics.addText(m.Topic)
		keys.addBytes(m.Key)
		payloads.addBytes(m.Payload)
		headers.addText(text)
		dues.addText(due)
	}
	return appendManySQL, []any{ids.String(), topics.String(), keys.String(), payloads.String(), headers.String(), dues.String()}, nil
}

// headersOf is the text of a message's headers, empty if there are none. It refuses what no
// relay would read: as JSON headers can take six times their bytes.
func headersOf(m *outbox.Message) (text string, err error) {
	if len(m.Headers) > 0 {
		if text, err = headersText(m.Headers); err != nil {
			return "", err
		}
	}
	const length = 4 // which the server stores before a value
	return text, outbox.CheckSize(int64(len(m.Key) + len(m.Payload) + len(text) + length))
}

// appendError says what the failure of a statement in somebody else's transaction
// means. What the server has against this one is not the store's unavailability.
func appendError(ctx context.Context, err error) error {
	const doing = "write events"
	state := stateOf(err)
	switch {
	case errors.Is(err, outbox.ErrRestored):
		return err
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone), errors.Is(err, idempotency.ErrTransactionEnded):
		return fmt.Errorf("postgres: %s: the transaction has ended: publish before its commit: %w", doing, err)
	case state == stateFailedTransaction:
		return fmt.Errorf("postgres: %s: an earlier statement of the transaction failed: %w", doing, err)
	case state == "", state == stateLockNotAvailable, isConflict(state), isOutage(state), isConnectionState(state), isUnprepared(state),
		state == stateUndefinedTable, state == stateUndefinedColumn, state == stateInvalidSchemaName, state == stateInsufficientRights:
		return storeError(ctx, doing, err)
	}
	// A trigger or a constraint of the user's, for one.
	return fmt.Errorf("postgres: %s: %w", doing, err)
}
