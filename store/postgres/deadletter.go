package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// addLetterSQL writes one dead letter. One statement for each, because a
// payload in an array would travel twice as long.
const addLetterSQL = `
INSERT INTO {schema}.dead_letter (consumer, topic, source, message_id, reason, error, attempts,
	message_key, payload, headers, position, message_time, parks_key, raw)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bigint,
	$8::text, $9::bytea, $10::text::json, $11::text, $12::text::timestamptz, $13::boolean, $14::text::json)`

// AddDeadLetters implements inbox.Store. It parks the keys first: while one of
// them is being freed it waits, up to the claim wait.
func (d *Database[Tx]) AddDeadLetters(ctx context.Context, tx Tx, letters []inbox.DeadLetter) error {
	r := d.transport.on(tx)
	var parked []parkedKey
	for _, l := range letters {
		if parks(l) {
			parked = append(parked, parkedKeyOf(l.Consumer, l.Message.Topic, l.Message.Key))
		}
	}
	for _, keys := range d.byTopic(parked) {
		if err := d.park(ctx, r, keys); err != nil {
			return storeError(ctx, "park the keys of dead letters", err)
		}
	}
	for _, letter := range letters {
		args, err := letterArgs(letter)
		if err != nil {
			return fmt.Errorf("postgres: dead letter: %w", err)
		}
		if _, err := r.exec(ctx, d.sql(addLetterSQL), args...); err != nil {
			return storeError(ctx, "write a dead letter", err)
		}
	}
	return nil
}

// defaultLimit is that of a Filter without one.
const defaultLimit = 1000

// DeadLetters implements inbox.Store.
func (d *Database[Tx]) DeadLetters(ctx context.Context, consumer string, filter inbox.Filter) ([]inbox.DeadLetter, error) {
	var letters []inbox.DeadLetter
	err := d.inTransaction(ctx, "list dead letters", func(ctx context.Context, r runner) error {
		return r.query(ctx, d.selectLetters(letterColumns, consumer, filter, func(row scanner) error {
			letter, err := scanLetter(row, consumer)
			letters = append(letters, letter)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return letters, nil
}

// selectLetters selects the oldest dead letters that match, by the index
// dead_letter_consumer: its order is the result's, so that it stops at the limit.
// With message IDs it is dead_letter_message, with numbers dead_letter_pkey.
func (d *Database[Tx]) selectLetters(columns, consumer string, f inbox.Filter, row func(scanner) error) query {
	var where strings.Builder
	args := []any{idempotency.StoredForm(consumer)}
	and := func(condition string, arg any) {
		args = append(args, arg)
		fmt.Fprintf(&where, " AND "+condition, len(args))
	}
	if f.Numbers != nil {
		var numbers arrayLiteral
		for _, n := range f.Numbers {
			numbers.addInt(n)
		}
		and("number = ANY ($%d::text::bigint[])", numbers.String())
	}
	if f.After != 0 {
		and("number > $%d::bigint", f.After)
	}
	if f.Reason != "" {
		and("reason = $%d::text", string(f.Reason))
	}
	if f.Topic != "" {
		and("topic = $%d::text", idempotency.StoredForm(f.Topic))
	}
	if f.MessageID != "" {
		and("message_id = $%d::text", idempotency.StoredForm(f.MessageID))
	}
	if f.Key != nil {
		and("message_key = $%d::text", idempotency.StoredForm(string(f.Key)))
	}
	if !f.Since.IsZero() {
		and("created_at >= $%d::text::timestamptz", timeArg(f.Since))
	}
	if !f.Before.IsZero() {
		and("created_at < $%d::text::timestamptz", timeArg(f.Before))
	}
	limit := f.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	args = append(args, int64(limit))
	statement := fmt.Sprintf("SELECT %s FROM {schema}.dead_letter WHERE consumer = $1::text%s ORDER BY number LIMIT $%d::bigint",
		columns, where.String(), len(args))
	return query{d.sql(statement), args, row}
}

// discardLettersSQL deletes dead letters by the index dead_letter_pkey. It locks
// them in their order first: two discards would take them in any order.
const discardLettersSQL = `
DELETE FROM {schema}.dead_letter WHERE number IN (
	SELECT number FROM {schema}.dead_letter WHERE number = ANY ($1::text::bigint[]) ORDER BY number FOR UPDATE)`

// DiscardDeadLetters implements inbox.Store. It waits for redrives of the keys
// it may free, up to the claim wait.
func (d *Database[Tx]) DiscardDeadLetters(ctx context.Context, consumer string, filter inbox.Filter) (int, error) {
	var discarded int64
	err := d.inTransaction(ctx, "discard dead letters", func(ctx context.Context, r runner) error {
		var numbers arrayLiteral
		var parked []parkedKey
		err := r.query(ctx, d.selectLetters("number, consumer, topic, CASE WHEN parks_key THEN message_key END", consumer, filter, func(row scanner) error {
			var number int64
			var at parkedKey
			var key *string
			if err := row.Scan(&number, &at.consumer, &at.topic, &key); err != nil {
				return err
			}
			numbers.addInt(number)
			if key != nil {
				at.key = *key
				parked = append(parked, at)
			}
			return nil
		}))
		if err != nil {
			return err
		}
		keys := d.byTopic(parked)
		for _, k := range keys {
			if _, err := k.lock(ctx, r, d.sql(lockKeysSQL, "UPDATE")); err != nil {
				return err
			}
		}
		if discarded, err = r.exec(ctx, d.sql(discardLettersSQL), numbers.String()); err != nil {
			return err
		}
		for _, k := range keys {
			if err := d.free(ctx, r, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int(discarded), nil
}
