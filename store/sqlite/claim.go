package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// now is the database's clock in microseconds. It stands still within a statement.
const now = `CAST(unixepoch('subsec') * 1000000 AS INTEGER)`

// claimOne records one claim. Conflicts are found in the primary key.
const claimOne = `
INSERT INTO onceward_record (scope, key, fingerprint, claimed_at, expires_at)
VALUES (?1, ?2, ?3, ` + now + `, ` + now + ` + ?4)
ON CONFLICT DO NOTHING`

// claimMany records the claims of a JSON array of [scope, key, fingerprint in hex
// or null, retention], and returns those that were new. Conflicts are found in
// the primary key. (WHERE true tells the parser that ON begins the conflict clause.)
const claimMany = `
INSERT INTO onceward_record (scope, key, fingerprint, claimed_at, expires_at)
SELECT value ->> 0, value ->> 1, unhex(value ->> 2), ` + now + `, ` + now + ` + (value ->> 3)
FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
RETURNING scope, key`

// readFingerprints reads the records of a JSON array of [scope, key], each by
// the primary key.
const readFingerprints = `
SELECT r.scope, r.key, r.fingerprint
FROM json_each(?1) AS wanted
CROSS JOIN onceward_record AS r ON r.scope = wanted.value ->> 0 AND r.key = wanted.value ->> 1`

// Atomic implements idempotency.Store. The claims of a call need no order among
// them: the write lock is taken first, so nobody can hold half of them.
func (s *Store) Atomic(
	ctx context.Context, claims []idempotency.Claim, work func(ctx context.Context, tx *sql.Tx, verdicts []idempotency.Verdict) error,
) error {
	for _, claim := range claims {
		if err := claim.Validate(); err != nil {
			return err
		}
	}
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		verdicts, err := s.claim(ctx, tx, claims)
		if err != nil {
			return failed("claim", err)
		}
		return work(ctx, tx, verdicts)
	})
}

// recordID is the primary key of a record: scope and key in stored form.
type recordID [2]string

func recordIDOf(claim idempotency.Claim) recordID {
	return recordID{idempotency.StoredForm(claim.Scope), idempotency.StoredForm(claim.Key)}
}

func (s *Store) claim(ctx context.Context, tx *sql.Tx, claims []idempotency.Claim) ([]idempotency.Verdict, error) {
	ids := make([]recordID, len(claims))
	first := make(map[recordID]int, len(claims)) // where each record is claimed first
	for i, claim := range claims {
		ids[i] = recordIDOf(claim)
		if _, claimed := first[ids[i]]; !claimed {
			first[ids[i]] = i
		}
	}
	fresh, err := s.insert(ctx, tx, claims, ids, first)
	if err != nil {
		return nil, err
	}
	recorded, err := fingerprints(ctx, tx, claims, ids, fresh)
	if err != nil {
		return nil, err
	}
	verdicts := make([]idempotency.Verdict, len(claims))
	for i, claim := range claims {
		other := recorded[ids[i]]
		if fresh[ids[i]] {
			if first[ids[i]] == i {
				verdicts[i] = idempotency.Fresh
				continue
			}
			other = claims[first[ids[i]]].Fingerprint
		}
		verdicts[i] = idempotency.Duplicate
		if claim.Fingerprint != nil && other != nil && !bytes.Equal(claim.Fingerprint, other) {
			verdicts[i] = idempotency.Reused
		}
	}
	return verdicts, nil
}

// insert records the first claim of each record and returns which were new.
func (s *Store) insert(ctx context.Context, tx *sql.Tx, claims []idempotency.Claim, ids []recordID, first map[recordID]int) (map[recordID]bool, error) {
	fresh := make(map[recordID]bool, len(first))
	switch len(first) {
	case 0:
		return fresh, nil
	case 1:
		id, claim := ids[0], claims[0]
		statement := tx.StmtContext(ctx, s.claimOne)
		defer func() { _ = statement.Close() }()
		result, err := statement.ExecContext(ctx, id[0], id[1], claim.Fingerprint, microseconds(claim.Retention))
		if err != nil {
			return nil, err
		}
		n, err := result.RowsAffected()
		fresh[id] = n == 1
		return fresh, err
	}

	rows := make([][4]any, 0, len(first))
	for i, claim := range claims {
		if first[ids[i]] != i {
			continue
		}
		var fingerprint any
		if claim.Fingerprint != nil {
			fingerprint = hex.EncodeToString(claim.Fingerprint)
		}
		rows = append(rows, [4]any{ids[i][0], ids[i][1], fingerprint, microseconds(claim.Retention)})
	}
	list, err := json.Marshal(rows)
	if err != nil {
		return nil, err
	}
	statement := tx.StmtContext(ctx, s.claimMany)
	defer func() { _ = statement.Close() }()
	inserted, err := statement.QueryContext(ctx, string(list))
	if err != nil {
		return nil, err
	}
	defer func() { _ = inserted.Close() }()
	for inserted.Next() {
		var id recordID
		if err := inserted.Scan(&id[0], &id[1]); err != nil {
			return nil, err
		}
		fresh[id] = true
	}
	return fresh, inserted.Err()
}

// fingerprints reads those of the records that were there before and have
// something to be compared with.
func fingerprints(ctx context.Context, tx *sql.Tx, claims []idempotency.Claim, ids []recordID, fresh map[recordID]bool) (map[recordID][]byte, error) {
	recorded := make(map[recordID][]byte)
	var wanted []recordID
	for i, claim := range claims {
		if _, listed := recorded[ids[i]]; claim.Fingerprint != nil && !fresh[ids[i]] && !listed {
			recorded[ids[i]] = nil
			wanted = append(wanted, ids[i])
		}
	}
	if len(wanted) == 0 {
		return recorded, nil
	}
	list, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, readFingerprints, string(list))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id recordID
		var fingerprint blob
		if err := rows.Scan(&id[0], &id[1], &fingerprint); err != nil {
			return nil, err
		}
		recorded[id] = fingerprint
	}
	return recorded, rows.Err()
}

// microseconds rounds up, so that no retention becomes zero.
func microseconds(retention time.Duration) int64 {
	whole := retention.Microseconds()
	if retention%time.Microsecond > 0 {
		whole++
	}
	return whole
}
