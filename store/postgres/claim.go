package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// claimOneSQL claims one record by the index record_pkey. Like claimManySQL, it
// returns the records it inserted.
//
// Here as everywhere, names that the search path could turn into somebody else's
// stand in full: PostgreSQL prefers an operator of the user's whose types fit
// better, and (bigint, interval) fits better than what it has itself.
const claimOneSQL = `
INSERT INTO {schema}.record (scope, key, fingerprint, expires_at)
SELECT c.scope, c.key, c.fingerprint,
	pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (c.micros::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
FROM {wait} (VALUES ($1::text, $2::text, $3::bytea, $4::bigint)) AS c (scope, key, fingerprint, micros)
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key`

// claimManySQL claims many records by the index record_pkey, in their order:
// two batches that take the same locks in opposite orders would deadlock. It
// returns the records in that order, too. No fingerprint is an empty text: with
// array_nulls off, NULL in an array is a word like any other.
const claimManySQL = `
INSERT INTO {schema}.record (scope, key, fingerprint, expires_at)
SELECT c.scope, c.key, NULLIF(c.fingerprint, '')::bytea,
	pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (c.micros::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
FROM {wait} unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS c (scope, key, fingerprint, micros)
ORDER BY c.scope COLLATE "C", c.key COLLATE "C"
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key`

// boundedClaimSQL is a claim that waits for another's at most as long as $5 says,
// and leaves lock_timeout as it found it, however that was set. It is one statement
// because database/sql would pay a round trip for each more (see bounded). "claimed"
// runs whole before the last row comes, one of NULLs, whose set_config puts the value
// back. After an error the transaction is lost anyway.
//
//nolint:dupword // SQL repeats itself.
const boundedClaimSQL = `
WITH wait AS MATERIALIZED (
	SELECT pg_catalog.current_setting('lock_timeout') AS before, pg_catalog.set_config('lock_timeout', $5::text, true)
), claimed AS ({claim}
)
SELECT scope, key, NULL FROM claimed
UNION ALL
SELECT NULL, NULL, pg_catalog.set_config('lock_timeout', (SELECT before FROM wait), true)`

// claimSQL returns a claim as it is and bounded.
func (d *Database[Tx]) claimSQL(claim string) (plain, bounded string) {
	plain = strings.Replace(claim, "{wait}", "", 1)
	bounded = strings.Replace(boundedClaimSQL, "{claim}", strings.Replace(claim, "{wait}", "wait,", 1), 1)
	return d.sql(plain), d.sql(bounded)
}

// fingerprintsSQL reads what the winners of lost claims recorded, by the index
// record_pkey. A statement of its own, after the claim: in READ COMMITTED it
// sees what was committed while the claim waited. It waits for nobody: the claim
// has locked the table against all that would hold up a reader. In hex, as a payload
// is in base64: see letterColumns.
const fingerprintsSQL = `
SELECT r.scope, r.key, pg_catalog.encode(r.fingerprint, 'hex')
FROM unnest($1::text[], $2::text[]) AS c (scope, key)
JOIN {schema}.record r ON r.scope = c.scope AND r.key = c.key
WHERE r.fingerprint IS NOT NULL`

// Atomic implements idempotency.Store.
//
// Of an error that is none of the sentinels it is certain that the transaction
// was rolled back: it is the work's own, or says what the work did wrong.
func (d *Database[Tx]) Atomic(
	ctx context.Context, claims []idempotency.Claim, work func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error,
) error {
	asked, err := newClaimSet(claims)
	if err != nil {
		return err
	}
	return d.transact(ctx, "claim", d.claim(asked), func(ctx context.Context, tx Tx) error {
		if lost := asked.lostWithFingerprint(); len(lost) > 0 {
			if err := d.judge(ctx, d.transport.on(tx), lost); err != nil {
				return storeError(ctx, "read the fingerprints of earlier claims", err)
			}
		}
		return work(ctx, tx, asked.verdicts())
	})
}

// claimSet is the claims of one call, equal ones together.
type claimSet struct {
	claims []storedClaim
	// sorted holds the claims in the order in which they are locked, those
	// that are equal in the order of the call.
	sorted []*storedClaim
	// next is where in sorted the next row is looked for.
	next int

	// one is the memory of a set of one claim.
	one struct {
		claims   [1]storedClaim
		sorted   [1]*storedClaim
		verdicts [1]idempotency.Verdict
		args     [4]any
	}
}

type storedClaim struct {
	scope, key  string
	fingerprint []byte
	retention   time.Duration
	verdict     idempotency.Verdict
	// first is the first claim of the call that is equal to this one.
	first *storedClaim
}

func newClaimSet(claims []idempotency.Claim) (*claimSet, error) {
	set := &claimSet{}
	if len(claims) == 1 {
		set.claims, set.sorted = set.one.claims[:], set.one.sorted[:]
	} else {
		set.claims, set.sorted = make([]storedClaim, len(claims)), make([]*storedClaim, len(claims))
	}
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			return nil, err
		}
		set.claims[i] = storedClaim{
			scope: idempotency.StoredForm(c.Scope), key: idempotency.StoredForm(c.Key),
			fingerprint: c.Fingerprint, retention: c.Retention, verdict: idempotency.Duplicate,
		}
		set.sorted[i] = &set.claims[i]
	}
	slices.SortStableFunc(set.sorted, compareClaims)
	for i, c := range set.sorted {
		c.first = c
		if i > 0 && compareClaims(set.sorted[i-1], c) == 0 {
			c.first = set.sorted[i-1].first
			if c.reuses(c.first.fingerprint) {
				c.verdict = idempotency.Reused
			}
		}
	}
	return set, nil
}

func compareClaims(a, b *storedClaim) int {
	return cmp.Or(strings.Compare(a.scope, b.scope), strings.Compare(a.key, b.key))
}

// reuses reports whether a key that was recorded with this fingerprint is
// claimed for another intent. Nil is not compared.
func (c *storedClaim) reuses(recorded []byte) bool {
	return recorded != nil && c.fingerprint != nil && !bytes.Equal(recorded, c.fingerprint)
}

func (set *claimSet) verdicts() []idempotency.Verdict {
	verdicts := set.one.verdicts[:]
	if len(set.claims) != 1 {
		verdicts = make([]idempotency.Verdict, len(set.claims))
	}
	for i := range set.claims {
		verdicts[i] = set.claims[i].verdict
	}
	return verdicts
}

// claim is the statement that claims the set, and notes which claims are fresh.
//
// Setting lock_timeout and putting it back costs the server a sixth of a transaction
// with one claim, though hardly any claim waits. So where the transport can hurry a
// statement, the first try goes without. Only if it takes too long a second one tells
// whether the claim is held, almost at once: it has been waited for, but the server may
// still be rolling back our own first try.
func (d *Database[Tx]) claim(set *claimSet) opening {
	if len(set.claims) == 0 {
		return opening{}
	}
	args := set.args()
	first := query{d.claimManySQL, args, set.row}
	switch {
	case !d.claimsHurry:
		first = d.boundedClaim(set, args, lockTimeout(d.claimWait))
	case len(set.claims) == 1:
		first = query{d.claimOneSQL, args, set.only}
	}
	return opening{first, func() query {
		set.forget()
		return d.boundedClaim(set, args, lockTimeout(min(d.claimWait, secondWait)))
	}}
}

// secondWait is how long a claim that has been waited for waits once more.
const secondWait = 50 * time.Millisecond

func (d *Database[Tx]) boundedClaim(set *claimSet, args []any, wait string) query {
	statement := d.claimManyBoundedSQL
	if len(set.claims) == 1 {
		statement = d.claimOneBoundedSQL
	}
	return query{statement, append(args, wait), set.boundedRow}
}

func (set *claimSet) args() []any {
	if len(set.claims) == 1 {
		c := &set.claims[0]
		return append(set.one.args[:0], c.scope, c.key, bytesArg(c.fingerprint), microseconds(c.retention))
	}
	var scopes, keys, fingerprints, micros arrayLiteral
	for _, c := range set.sorted {
		if c.first == c {
			scopes.addText(c.scope)
			keys.addText(c.key)
			fingerprints.addBytes(c.fingerprint)
			micros.addInt(microseconds(c.retention))
		}
	}
	return []any{scopes.String(), keys.String(), fingerprints.String(), micros.String()}
}

// only notes that the only claim was inserted: no other row can come.
func (set *claimSet) only(scanner) error {
	set.claims[0].verdict = idempotency.Fresh
	return nil
}

func (set *claimSet) row(row scanner) error {
	var scope, key string
	if err := row.Scan(&scope, &key); err != nil {
		return err
	}
	set.inserted(scope, key)
	return nil
}

func (set *claimSet) boundedRow(row scanner) error {
	var scope, key, restored *string
	if err := row.Scan(&scope, &key, &restored); err != nil || scope == nil {
		return err
	}
	set.inserted(*scope, *key)
	return nil
}

// inserted notes a fresh claim. Rows come back in the order in which they were inserted.
func (set *claimSet) inserted(scope, key string) {
	for set.next < len(set.sorted) {
		c := set.sorted[set.next]
		set.next++
		if c.scope == scope && c.key == key {
			c.verdict = idempotency.Fresh
			return
		}
	}
}

// forget undoes what was noted.
func (set *claimSet) forget() {
	set.next = 0
	for i := range set.claims {
		if set.claims[i].verdict == idempotency.Fresh {
			set.claims[i].verdict = idempotency.Duplicate
		}
	}
}

// microseconds rounds up, so that no retention becomes zero.
func microseconds(retention time.Duration) int64 {
	whole := retention.Microseconds()
	if retention%time.Microsecond > 0 {
		whole++
	}
	return whole
}

// lostWithFingerprint returns the claims whose verdict hangs on what another
// transaction recorded.
func (set *claimSet) lostWithFingerprint() []*storedClaim {
	var lost []*storedClaim
	for _, c := range set.sorted {
		if c.first.verdict != idempotency.Fresh && c.fingerprint != nil {
			lost = append(lost, c)
		}
	}
	return lost
}

// judge compares lost claims with what is recorded. A record that was pruned in
// the meantime, or has no fingerprint, is not compared.
func (d *Database[Tx]) judge(ctx context.Context, r runner, lost []*storedClaim) error {
	var scopes, keys arrayLiteral
	for i, c := range lost {
		c.verdict = idempotency.Duplicate
		if i == 0 || lost[i-1].first != c.first {
			scopes.addText(c.scope)
			keys.addText(c.key)
		}
	}
	return r.query(ctx, query{d.fingerprintsSQL, []any{scopes.String(), keys.String()}, func(row scanner) error {
		var scope, key, text string
		if err := row.Scan(&scope, &key, &text); err != nil {
			return err
		}
		recorded, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		same := &storedClaim{scope: scope, key: key}
		i, _ := slices.BinarySearchFunc(lost, same, compareClaims)
		for ; i < len(lost) && compareClaims(lost[i], same) == 0; i++ {
			if lost[i].reuses(recorded) {
				lost[i].verdict = idempotency.Reused
			}
		}
		return nil
	}})
}
