package postgres

import (
	"context"
	"encoding/json"

	"github.com/onceward/onceward/outbox"
)

// putAsideSQL sets events aside, or changes them, by the index aside_pkey.
const putAsideSQL = `
INSERT INTO {schema}.aside (relay, number, lane, state, key_hash, due_at, attempts, error)
SELECT $1::text, n.number, n.lane, n.state, NULLIF(n.key_hash, ''),
	CASE WHEN n.state = 'delayed' OR n.state = 'retrying'
	THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (n.after::float8 OPERATOR(pg_catalog.*) interval '1 microsecond') END,
	n.attempts, n.error
FROM pg_catalog.json_to_recordset($2::text::json) AS n
	(number bigint, lane integer, state text, key_hash text, after bigint, attempts integer, error text)
ORDER BY n.number
ON CONFLICT (relay, number) DO UPDATE SET
	lane = EXCLUDED.lane, state = EXCLUDED.state, key_hash = EXCLUDED.key_hash, due_at = EXCLUDED.due_at,
	attempts = EXCLUDED.attempts, error = EXCLUDED.error`

// asideDocument is an element of the argument of putAsideSQL.
type asideDocument struct {
	Number   int64        `json:"number"`
	Lane     int          `json:"lane"`
	State    outbox.State `json:"state"`
	KeyHash  string       `json:"key_hash"`
	After    int64        `json:"after"`
	Attempts int          `json:"attempts"`
	Error    string       `json:"error"`
}

func (d *Database[Tx]) putAside(ctx context.Context, r runner, relay string, asides []outbox.Aside) error {
	if len(asides) == 0 {
		return nil
	}
	documents := make([]asideDocument, 0, len(asides))
	places := make(map[int64]int, len(asides))
	for _, a := range asides {
		document := asideDocument{a.Number, a.Lane, a.State, a.KeyHash, microseconds(max(0, a.After)), a.Attempts, storable(a.Error)}
		if place, known := places[a.Number]; known {
			documents[place] = document // What was said last holds.
			continue
		}
		places[a.Number] = len(documents)
		documents = append(documents, document)
	}
	text, err := json.Marshal(documents)
	if err != nil {
		return err
	}
	_, err = r.exec(ctx, d.sql(putAsideSQL), relay, string(text))
	return err
}

// removeAsideSQL goes by the index aside_pkey.
const removeAsideSQL = `DELETE FROM {schema}.aside WHERE relay = $1::text AND number = ANY ($2::text::bigint[])`

// promoteSQL gives keys whose first event has gone a new first one, by the index
// aside_key: the oldest of those that were behind it is due now. It tells which of the
// keys have nothing left.
const promoteSQL = `
WITH of AS MATERIALIZED (
	SELECT k.lane, k.hash FROM pg_catalog.json_to_recordset($2::text::json) AS k (lane integer, hash text)
), promoted AS (
	UPDATE {schema}.aside a SET state = 'retrying', due_at = pg_catalog.clock_timestamp()
	FROM of k CROSS JOIN LATERAL (
		SELECT b.number FROM {schema}.aside b
		WHERE b.relay = $1::text AND b.lane = k.lane AND b.key_hash = k.hash AND b.state = 'behind'
		ORDER BY b.relay, b.lane, b.key_hash, b.number LIMIT 1
	) b
	WHERE a.relay = $1::text AND a.number = b.number AND NOT EXISTS (
		SELECT FROM {schema}.aside f
		WHERE f.relay = $1::text AND f.lane = k.lane AND f.key_hash = k.hash AND f.state IN ('retrying', 'dead'))
)
SELECT k.hash FROM of k
WHERE NOT EXISTS (
	SELECT FROM {schema}.aside a
	WHERE a.relay = $1::text AND a.lane = k.lane AND a.key_hash = k.hash AND a.state IN ('retrying', 'behind', 'dead'))`

// keyDocument is an element of the argument of promoteSQL.
type keyDocument struct {
	Lane int    `json:"lane"`
	Hash string `json:"hash"`
}

// removeAside returns the keys that have nothing set aside any more.
func (d *Database[Tx]) removeAside(ctx context.Context, r runner, relay string, asides []outbox.Aside) (freed []string, err error) {
	if len(asides) == 0 {
		return nil, nil
	}
	var numbers arrayLiteral
	keys := keySet{}
	for _, a := range asides {
		numbers.addInt(a.Number)
		if a.KeyHash != "" {
			keys[keyDocument{a.Lane, a.KeyHash}] = struct{}{}
		}
	}
	if _, err := r.exec(ctx, d.sql(removeAsideSQL), relay, numbers.String()); err != nil {
		return nil, err
	}
	return d.promote(ctx, r, relay, keys)
}

func (d *Database[Tx]) promote(ctx context.Context, r runner, relay string, keys keySet) (freed []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	documents := make([]keyDocument, 0, len(keys))
	for key := range keys {
		documents = append(documents, key)
	}
	text, err := json.Marshal(documents)
	if err != nil {
		return nil, err
	}
	err = r.query(ctx, query{d.sql(promoteSQL), []any{relay, string(text)}, func(row scanner) error {
		var hash string
		err := row.Scan(&hash)
		freed = append(freed, hash)
		return err
	}})
	return freed, err
}

// heldSQL reads what holds up others or is to be passed, by the index aside_key: all
// retrying and skipped events and, if the relay parks keys, one of each key that has others: dead
// letters of years may stand there, which hold up nobody else. And what is ahead of
// its lane: it stands behind what any of the lanes has looked at as a whole, by aside_pkey,
// or belongs to a transaction that a lane saw in progress, by outbox_xid. What is
// delayed and was passed can be a lot, and is not looked at.
//
//nolint:unqueryvet // What passedSQL compares are the columns of a lane.
const heldSQL = `
WITH l AS MATERIALIZED (
	SELECT l.*, LEAST(l.floor, NULLIF(l.replay, 0) - 1) AS start FROM {schema}.relay_lane l
	WHERE l.relay = $1::text AND l.lane = ANY ($2::text::integer[])
), late AS MATERIALIZED (
	SELECT DISTINCT x.xid FROM (SELECT DISTINCT l.seen::text AS seen FROM l) s CROSS JOIN LATERAL pg_catalog.pg_snapshot_xip(s.seen::pg_snapshot) AS x (xid)
	WHERE pg_catalog.pg_visible_in_snapshot(x.xid, pg_catalog.pg_current_snapshot())
), candidate AS (
	SELECT a.number, a.lane FROM l JOIN {schema}.aside a ON a.lane = l.lane
	WHERE a.relay = $1::text AND a.number > (SELECT pg_catalog.min(l.start) FROM l) AND a.number > l.start
	UNION
	SELECT a.number, a.lane FROM late CROSS JOIN LATERAL (
		SELECT o.number FROM {schema}.outbox o
		WHERE o.xid = late.xid AND (o.xid, o.number) > (late.xid, 0::bigint) ORDER BY o.xid, o.number
	) o JOIN {schema}.aside a ON a.relay = $1::text AND a.number = o.number
), ahead AS MATERIALIZED (
	SELECT e.number FROM candidate c JOIN l ON l.lane = c.lane JOIN {schema}.outbox e ON e.number = c.number
	WHERE NOT ` + passedSQL + `
)
SELECT a.number, a.lane, a.state, coalesce(a.key_hash, ''), a.attempts,
	(pg_catalog.date_part('epoch', a.due_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint,
	a.number IN (SELECT h.number FROM ahead h)
FROM {schema}.aside a
WHERE a.relay = $1::text AND a.lane = ANY ($2::text::integer[]) AND a.state IN ('retrying', 'skipped')
UNION ALL
(SELECT DISTINCT ON (a.lane, a.key_hash) a.number, a.lane, a.state, a.key_hash, a.attempts, NULL::bigint, false
FROM {schema}.aside a
WHERE a.relay = $1::text AND a.lane = ANY ($2::text::integer[]) AND a.state IN ('behind', 'dead') AND a.key_hash IS NOT NULL
AND (SELECT r.policy = 'park_key' FROM {schema}.relay r WHERE r.name = $1::text)
AND a.number NOT IN (SELECT h.number FROM ahead h)
ORDER BY a.lane, a.key_hash, a.number)
UNION ALL
SELECT a.number, a.lane, a.state, coalesce(a.key_hash, ''), a.attempts,
	(pg_catalog.date_part('epoch', a.due_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint, true
FROM ahead h JOIN {schema}.aside a ON a.relay = $1::text AND a.number = h.number
WHERE a.state NOT IN ('retrying', 'skipped')`

// Held implements outbox.RelayStore.
func (d *Database[Tx]) Held(ctx context.Context, relay string, lanes []int) ([]outbox.Aside, error) {
	var held []outbox.Aside
	retrying := map[string]bool{}
	err := d.alone(ctx, "read what is set aside", query{d.sql(heldSQL), []any{relay, lanesLiteral(lanes)}, func(row scanner) error {
		var a outbox.Aside
		var state string
		var due *int64
		if err := row.Scan(&a.Number, &a.Lane, &state, &a.KeyHash, &a.Attempts, &due, &a.Ahead); err != nil {
			return err
		}
		if due != nil {
			a.After = fromNow(due)
		}
		a.State = outbox.State(state)
		switch {
		case a.State == outbox.Retrying:
			retrying[a.KeyHash] = true
		case a.State != outbox.Skipped && !a.Ahead && retrying[a.KeyHash]:
			return nil
		}
		held = append(held, a)
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return held, nil
}
