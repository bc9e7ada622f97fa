package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Claim asks to be the first to carry out one intent.
type Claim struct {
	// Scope is what Key is unique within: consumer and source for a message,
	// the caller's account for a request. Never empty; any bytes.
	Scope string

	// Key is the identity of the intent. Never empty; any bytes, any length.
	Key string

	// Fingerprint is a hash of what the intent was. When both it and the
	// recorded one are present and differ, the verdict is Reused. Nil: not compared.
	Fingerprint []byte

	// Retention is how long the record lives at least, counted on the store's
	// clock from the claim. It must be positive, at most MaxRetention, and
	// outlive the longest time in which a duplicate can still arrive.
	Retention time.Duration
}

// MaxRetention is the longest Retention of a Claim: 100 years. No sum of a time
// and a retention leaves what a store's timestamps hold.
const MaxRetention = 100 * 365 * 24 * time.Hour

// Validate reports the first field that no store can work with.
func (c Claim) Validate() error {
	switch {
	case c.Scope == "":
		return errors.New("idempotency: Claim.Scope is empty: name the consumer and source, or the caller, that the key is unique within")
	case c.Key == "":
		return errors.New("idempotency: Claim.Key is empty: an empty key would make unrelated intents duplicates of each other")
	case c.Retention <= 0:
		return errors.New("idempotency: Claim.Retention is not positive: say how long duplicates can still arrive")
	case c.Retention > MaxRetention:
		return fmt.Errorf("idempotency: Claim.Retention is %v: at most %v, 100 years", c.Retention, MaxRetention)
	}
	return nil
}

// Verdict is what a claim found.
type Verdict uint8

const (
	// Fresh: this transaction holds the claim; the work is to be done now.
	Fresh Verdict = iota + 1
	// Duplicate: the work was done before (or earlier in the same batch).
	Duplicate
	// Reused: the key is recorded with another fingerprint: it was given to
	// a different intent. The work is refused, never replayed.
	Reused
)

func (v Verdict) String() string {
	switch v {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Reused:
		return "reused"
	}
	return "no verdict"
}

// MaxStoredBytes bounds what StoredForm keeps as it is: an index entry of
// PostgreSQL holds about 2,700 bytes, and scope and key share one.
const MaxStoredBytes = 512

const hashedPrefix = "sha256:"

// StoredForm is how a scope or key stands in a text column. Text that every
// store can hold stays readable; what it cannot hold (over MaxStoredBytes, not
// UTF-8, or with NUL bytes) is replaced by a hash with a prefix. Text that
// already has that prefix is hashed as well, so that two different inputs never
// share a form.
func StoredForm(s string) string {
	if len(s) <= MaxStoredBytes && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 && !strings.HasPrefix(s, hashedPrefix) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hashedPrefix + hex.EncodeToString(sum[:])
}
