package postgres

import (
	"context"
	"fmt"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// findLetterSQL says which key a dead letter waits for, by the index dead_letter_pkey.
const findLetterSQL = `
SELECT topic, message_key FROM {schema}.dead_letter WHERE number = $1::bigint AND consumer = $2::text`

// takeLetterSQL removes a dead letter by the index dead_letter_pkey.
const takeLetterSQL = `
DELETE FROM {schema}.dead_letter WHERE number = $1::bigint AND consumer = $2::text
RETURNING ` + letterColumns

// olderLetterSQL looks for an older dead letter that parks the key, by the index
// dead_letter_parked.
const olderLetterSQL = `
SELECT number FROM {schema}.dead_letter
WHERE consumer = $1::text AND topic = $2::text AND message_key = $3::text AND parks_key AND number < $4::bigint
ORDER BY number LIMIT 1`

// TakeDeadLetter implements inbox.Store. The letter and its key are gone before
// work begins, in the same transaction: consumers that ask for the key wait for
// its end, and work that ends the transaction itself still redrives no letter twice.
func (d *Database[Tx]) TakeDeadLetter(
	ctx context.Context, consumer string, number int64, work func(ctx context.Context, tx Tx, letter inbox.DeadLetter) error,
) error {
	const doing = "take a dead letter"
	var before string // The work gets lock_timeout as the user set it.
	return d.transact(ctx, doing, opening{query: setWait(lockTimeout(d.claimWait), &before)}, func(ctx context.Context, tx Tx) error {
		r := d.transport.on(tx)
		letter, err := d.take(ctx, r, consumer, number)
		if err != nil {
			return err
		}
		if err := r.query(ctx, setWait(before, new(string))); err != nil {
			return storeError(ctx, doing, err)
		}
		return work(ctx, tx, letter)
	})
}

// take removes a letter. It locks the key before the letter, as everybody does.
func (d *Database[Tx]) take(ctx context.Context, r runner, consumer string, number int64) (letter inbox.DeadLetter, err error) {
	keys, err := d.keyOfLetter(ctx, r, consumer, number)
	if err != nil {
		return letter, err
	}
	for _, k := range keys {
		if _, err := d.lockKeys(ctx, r, k, d.sql(lockKeysSQL, "UPDATE")); err != nil {
			return letter, storeError(ctx, "lock the key of a dead letter", err)
		}
		if err := d.refuseBehind(ctx, r, k, number); err != nil {
			return letter, err
		}
	}
	taken := false
	args := []any{number, idempotency.StoredForm(consumer)}
	err = r.query(ctx, query{d.sql(takeLetterSQL), args, func(row scanner) (err error) {
		taken = true
		letter, err = scanLetter(row, consumer)
		return err
	}})
	if err != nil {
		return letter, storeError(ctx, "take a dead letter", err)
	}
	if !taken {
		return letter, goneError(number)
	}
	for _, k := range keys {
		if err := d.free(ctx, r, k); err != nil {
			return letter, storeError(ctx, "free the key of a dead letter", err)
		}
	}
	return letter, nil
}

// keyOfLetter returns the key of a letter, or none if it has none.
func (d *Database[Tx]) keyOfLetter(ctx context.Context, r runner, consumer string, number int64) ([]topicKeys, error) {
	found := false
	var keys []parkedKey
	args := []any{number, idempotency.StoredForm(consumer)}
	err := r.query(ctx, query{d.sql(findLetterSQL), args, func(row scanner) error {
		at := parkedKey{consumer: idempotency.StoredForm(consumer)}
		var key *string
		if err := row.Scan(&at.topic, &key); err != nil {
			return err
		}
		if found = true; key != nil {
			at.key = *key
			keys = append(keys, at)
		}
		return nil
	}})
	if err != nil {
		return nil, storeError(ctx, "find a dead letter", err)
	}
	if !found {
		return nil, goneError(number)
	}
	return byTopic(keys), nil
}

func (d *Database[Tx]) refuseBehind(ctx context.Context, r runner, k topicKeys, number int64) error {
	var older int64
	args := []any{k.consumer, k.topic, k.keys[0], number}
	err := r.query(ctx, query{d.sql(olderLetterSQL), args, func(row scanner) error { return row.Scan(&older) }})
	if err != nil {
		return storeError(ctx, "look for an older dead letter", err)
	}
	if older != 0 {
		return fmt.Errorf("postgres: dead letter %d waits behind %d: %w", number, older, inbox.ErrBehind)
	}
	return nil
}

func goneError(number int64) error {
	return fmt.Errorf("postgres: dead letter %d: %w", number, inbox.ErrGone)
}

// failLetterSQL notes a failed redrive by the index dead_letter_pkey.
const failLetterSQL = `
UPDATE {schema}.dead_letter SET attempts = attempts + 1, error = $3::text
WHERE number = $1::bigint AND consumer = $2::text`

// FailDeadLetter implements inbox.Store. ErrGone: somebody removed it.
func (d *Database[Tx]) FailDeadLetter(ctx context.Context, consumer string, number int64, cause string) error {
	var rows int64
	err := d.inTransaction(ctx, "note a failed redrive", func(ctx context.Context, r runner) (err error) {
		rows, err = r.exec(ctx, d.sql(failLetterSQL), number, idempotency.StoredForm(consumer), storable(cause))
		return err
	})
	if err == nil && rows == 0 {
		err = goneError(number)
	}
	return err
}
