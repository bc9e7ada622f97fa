package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// addLettersSQL writes dead letters, one row of values for each: the payloads
// travel as they are, which an array or a document would make larger.
const addLettersSQL = `
INSERT INTO {schema}.dead_letter (consumer, topic, source, message_id, reason, error, attempts,
	message_key, payload, headers, position, message_time, parks_key, raw)
VALUES {rows}`

// letterTypes are the types of the arguments of a letter, in the order of the
// columns above.
//
//nolint:gochecknoglobals,dupword // A constant in all but name. SQL repeats itself.
var letterTypes = strings.Fields(`text text text text text text bigint
	text bytea text::json text text::timestamptz boolean text::json`)

// Of one statement: connections keep a prepared one for each number of rows, and
// PostgreSQL takes messages up to 1 GB.
const (
	maxStatementLetters = 100
	maxStatementPayload = 16 << 20
)

// AddDeadLetters implements inbox.Store. It parks the keys first: while one of
// them is being freed it waits, up to the claim wait.
func (d *Database[Tx]) AddDeadLetters(ctx context.Context, tx Tx, letters []inbox.DeadLetter) error {
	if d.invalid != nil || len(letters) == 0 {
		return d.invalid
	}
	r := d.transport.on(tx)
	err := d.bounded(ctx, r, func() error {
		var parked []parkedKey
		for _, l := range letters {
			if parks(l) {
				parked = append(parked, parkedKeyOf(l.Consumer, l.Message.Topic, l.Message.Key))
			}
		}
		for _, keys := range byTopic(parked) {
			if err := d.park(ctx, r, keys); err != nil {
				return err
			}
		}
		for len(letters) > 0 {
			n := together(letters)
			if err := d.addLetters(ctx, r, letters[:n]); err != nil {
				return err
			}
			letters = letters[n:]
		}
		return nil
	})
	if err != nil {
		return storeError(ctx, "write dead letters", err)
	}
	return nil
}

// together is how many of the first letters go in one statement: at least one.
func together(letters []inbox.DeadLetter) int {
	payload := 0
	for i, l := range letters {
		if payload += len(l.Message.Payload); i == maxStatementLetters || i > 0 && payload > maxStatementPayload {
			return i
		}
	}
	return len(letters)
}

func (d *Database[Tx]) addLetters(ctx context.Context, r runner, letters []inbox.DeadLetter) error {
	var rows strings.Builder
	var all []any
	for i, letter := range letters {
		args, err := letterArgs(letter)
		if err != nil {
			return err
		}
		separator := "("
		if i > 0 {
			separator = ", ("
		}
		for n, of := range letterTypes {
			fmt.Fprintf(&rows, "%s$%d::%s", separator, len(all)+n+1, of)
			separator = ", "
		}
		rows.WriteByte(')')
		all = append(all, args...)
	}
	_, err := r.exec(ctx, d.sql(strings.Replace(addLettersSQL, "{rows}", rows.String(), 1)), all...)
	return err
}

// DeadLetters implements inbox.Store.
func (d *Database[Tx]) DeadLetters(ctx context.Context, consumer string, filter inbox.Filter) ([]inbox.DeadLetter, error) {
	columns := letterColumns
	if filter.Brief {
		columns = briefColumns + ", NULL::text, NULL::text"
	}
	var letters []inbox.DeadLetter
	err := d.inTransaction(ctx, "list dead letters", func(ctx context.Context, r runner) error {
		return r.query(ctx, d.selectLetters(columns, consumer, filter, func(row scanner) error {
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
	where := conditions{args: []any{idempotency.StoredForm(consumer)}}
	where.among("number", f.Numbers)
	if f.After != 0 {
		where.and("number > $%d::bigint", f.After)
	}
	if f.Reason != "" {
		where.and("reason = $%d::text", string(f.Reason))
	}
	if f.Topic != "" {
		where.and("topic = $%d::text", idempotency.StoredForm(f.Topic))
	}
	if f.MessageID != "" {
		where.and("message_id = $%d::text", idempotency.StoredForm(f.MessageID))
	}
	if f.Key != nil {
		where.and("message_key = $%d::text", idempotency.StoredForm(string(f.Key)))
	}
	if !f.Since.IsZero() {
		where.and("created_at >= $%d::text::timestamptz", timeArg(f.Since))
	}
	if !f.Before.IsZero() {
		where.and("created_at < $%d::text::timestamptz", timeArg(f.Before))
	}
	where.args = append(where.args, int64(f.Limit))
	statement := fmt.Sprintf("SELECT %s FROM {schema}.dead_letter WHERE consumer = $1::text%s ORDER BY number LIMIT $%d::bigint",
		columns, where.text.String(), len(where.args))
	return query{d.sql(statement), where.args, row}
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
		keys := byTopic(parked)
		for _, k := range keys {
			if _, err := d.lockKeys(ctx, r, k, d.sql(lockKeysSQL, "UPDATE")); err != nil {
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
