package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/onceward/onceward/idempotency"
)

// lockKeysSQL finds parked keys by the index parked_key_pkey and locks them
// until the transaction ends: KEY SHARE, and they stay parked; UPDATE, and they
// can be freed. It waits as long as $4 says, and puts lock_timeout back with its
// last row (see claimOneSQL): the question for parked keys, asked for every batch,
// is one round trip.
const lockKeysSQL = `
WITH wait AS MATERIALIZED (
	SELECT pg_catalog.current_setting('lock_timeout') AS before, pg_catalog.set_config('lock_timeout', $4::text, true)
), parked AS MATERIALIZED (
	SELECT k.message_key
	FROM wait, {schema}.parked_key k
	WHERE k.consumer = $1::text AND k.topic = $2::text AND k.message_key = ANY ($3::text[])
	ORDER BY k.message_key
	FOR {strength} OF k
)
SELECT message_key, NULL FROM parked
UNION ALL
SELECT NULL, pg_catalog.set_config('lock_timeout', (SELECT before FROM wait), true)`

// parkKeysSQL parks keys by the index parked_key_pkey. It waits while a redrive
// that has freed one of them runs.
const parkKeysSQL = `
INSERT INTO {schema}.parked_key (consumer, topic, message_key)
SELECT $1::text, $2::text, k.message_key FROM pg_catalog.unnest($3::text[]) AS k (message_key)
ORDER BY k.message_key COLLATE "C"
ON CONFLICT (consumer, topic, message_key) DO NOTHING`

// freeKeysSQL frees keys, which the transaction has locked FOR UPDATE, by the
// index parked_key_pkey, unless dead_letter_parked still has a letter there.
const freeKeysSQL = `
DELETE FROM {schema}.parked_key k
WHERE k.consumer = $1::text AND k.topic = $2::text AND k.message_key = ANY ($3::text[])
AND NOT EXISTS (
	SELECT FROM {schema}.dead_letter l
	WHERE l.consumer = k.consumer AND l.topic = k.topic AND l.message_key = k.message_key AND l.parks_key)`

// ParkedKeys implements inbox.Store. It waits while one of the keys is being
// freed, up to the claim wait.
func (d *Database[Tx]) ParkedKeys(ctx context.Context, tx Tx, consumer, topic string, keys [][]byte) ([]bool, error) {
	if d.invalid != nil {
		return nil, d.invalid
	}
	parked := make([]bool, len(keys))
	asked := make([]parkedKey, 0, len(keys))
	for _, key := range keys {
		if key != nil {
			asked = append(asked, parkedKeyOf(consumer, topic, key))
		}
	}
	for _, set := range byTopic(asked) { // One at most.
		found, err := d.lockKeys(ctx, d.transport.on(tx), set, d.lockKeySharesSQL)
		if err != nil {
			return nil, storeError(ctx, "look for parked keys", err)
		}
		for i, key := range keys {
			if key != nil && len(found) > 0 {
				_, parked[i] = slices.BinarySearch(found, idempotency.StoredForm(string(key)))
			}
		}
	}
	return parked, nil
}

// parkedKey names a row of parked_key. All of it is in stored form.
type parkedKey struct{ consumer, topic, key string }

func parkedKeyOf(consumer, topic string, key []byte) parkedKey {
	return parkedKey{idempotency.StoredForm(consumer), idempotency.StoredForm(topic), idempotency.StoredForm(string(key))}
}

func (k parkedKey) compare(other parkedKey) int {
	return cmp.Or(strings.Compare(k.consumer, other.consumer), strings.Compare(k.topic, other.topic), strings.Compare(k.key, other.key))
}

// topicKeys are keys of one consumer and topic, in stored form, sorted.
type topicKeys struct {
	consumer, topic string
	keys            []string
}

// byTopic sorts keys, and collects those of a topic: they are locked in this
// order everywhere.
func byTopic(keys []parkedKey) []topicKeys {
	slices.SortFunc(keys, parkedKey.compare)
	var sets []topicKeys
	for _, k := range slices.Compact(keys) {
		if n := len(sets); n == 0 || sets[n-1].consumer != k.consumer || sets[n-1].topic != k.topic {
			sets = append(sets, topicKeys{consumer: k.consumer, topic: k.topic})
		}
		last := &sets[len(sets)-1]
		last.keys = append(last.keys, k.key)
	}
	return sets
}

func (k topicKeys) literal() string {
	var literal arrayLiteral
	for _, key := range k.keys {
		literal.addText(key)
	}
	return literal.String()
}

// lockKeys runs lockKeysSQL and returns the keys that are parked, sorted.
func (d *Database[Tx]) lockKeys(ctx context.Context, r runner, k topicKeys, statement string) ([]string, error) {
	var found []string
	args := []any{k.consumer, k.topic, k.literal(), lockTimeout(d.claimWait)}
	err := r.query(ctx, query{statement, args, func(row scanner) error {
		var key, restored *string
		if err := row.Scan(&key, &restored); err != nil {
			return err
		}
		if key != nil {
			found = append(found, *key)
		}
		return nil
	}})
	return found, err
}

// park sees to it that all the keys are parked and stay so until the
// transaction ends. A key can be freed between the two statements, by somebody
// who held its lock before us; then it is parked anew.
func (d *Database[Tx]) park(ctx context.Context, r runner, k topicKeys) error {
	for {
		if _, err := r.exec(ctx, d.sql(parkKeysSQL), k.consumer, k.topic, k.literal()); err != nil {
			return err
		}
		found, err := d.lockKeys(ctx, r, k, d.lockKeySharesSQL)
		if err != nil || len(found) == len(k.keys) {
			return err
		}
	}
}

func (d *Database[Tx]) free(ctx context.Context, r runner, k topicKeys) error {
	_, err := r.exec(ctx, d.sql(freeKeysSQL), k.consumer, k.topic, k.literal())
	return err
}
