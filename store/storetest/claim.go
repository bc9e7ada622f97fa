package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/onceward/onceward/idempotency"
)

const (
	fresh     = idempotency.Fresh
	duplicate = idempotency.Duplicate
	reused    = idempotency.Reused
)

func claimRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"FirstClaimIsFreshEveryLaterOneDuplicate", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			f.wantVerdict(claimOf("a"), duplicate)
			f.wantVerdict(claimOf("a"), duplicate)
			f.wantEffects("a", 1)
		}},
		{"DuplicateIsSeenThroughAnotherHandle", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			if got := f.settle(f.db.Open(f.T, patience), claimOf("a")); got != duplicate {
				f.Fatalf("through another handle: %v", got)
			}
		}},
		{"VerdictsStandInTheOrderOfTheClaims", func(f *fixture[Tx]) {
			f.wantVerdicts(claimsOf("m", "c"), fresh, fresh)
			f.wantVerdicts(claimsOf("z", "c", "a", "m", "b"), fresh, duplicate, fresh, duplicate, fresh)
			f.wantVerdicts(claimsOf("b", "z", "y"), duplicate, duplicate, fresh)
			for _, key := range []string{"a", "b", "c", "m", "y", "z"} {
				f.wantEffects(key, 1)
			}
		}},
		{"OfEqualClaimsInOneCallTheFirstCounts", func(f *fixture[Tx]) {
			f.wantVerdicts(claimsOf("b", "a", "b", "b", "a"), fresh, fresh, duplicate, duplicate, duplicate)
			f.wantEffects("b", 1)
			f.wantVerdicts(claimsOf("b", "b", "c", "c"), duplicate, duplicate, fresh, duplicate)
		}},
		{"SameKeyInAnotherScopeIsAnotherIntent", func(f *fixture[Tx]) {
			f.wantVerdicts([]idempotency.Claim{
				{Scope: "a", Key: "bc", Retention: retention},
				{Scope: "ab", Key: "c", Retention: retention},
				{Scope: "ab", Key: "bc", Retention: retention},
				{Scope: "a", Key: "c", Retention: retention},
			}, fresh, fresh, fresh, fresh)
		}},
		{"AnotherFingerprintIsReused", anotherFingerprintIsReused[Tx]},
		{"MissingFingerprintIsNotCompared", missingFingerprintIsNotCompared[Tx]},
		{"EmptyFingerprintIsAFingerprint", func(f *fixture[Tx]) {
			f.wantVerdict(withFingerprint("a", []byte{}), fresh)
			f.wantVerdict(withFingerprint("a", []byte{}), duplicate)
			f.wantVerdict(withFingerprint("a", []byte{0}), reused)
			f.wantVerdict(withFingerprint("a", nil), duplicate)
		}},
		{"EqualClaimsInOneCallAreJudgedByTheFirstFingerprint", func(f *fixture[Tx]) {
			f.wantVerdicts([]idempotency.Claim{
				withFingerprint("a", []byte("x")), withFingerprint("a", []byte("y")), withFingerprint("a", []byte("x")), withFingerprint("a", nil),
				withFingerprint("b", nil), withFingerprint("b", []byte("x")), withFingerprint("b", []byte("y")),
			}, fresh, reused, duplicate, duplicate, fresh, duplicate, duplicate)
			f.wantVerdicts([]idempotency.Claim{
				withFingerprint("a", []byte("y")), withFingerprint("a", []byte("x")), withFingerprint("b", []byte("y")),
			}, reused, duplicate, duplicate)
		}},
		{"WorkIsCalledEvenIfNothingIsFresh", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			for _, claims := range [][]idempotency.Claim{claimsOf("a"), nil} {
				calls := 0
				err := f.store.Atomic(f.Context(), claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
					calls++
					if len(verdicts) != len(claims) {
						return fmt.Errorf("%d verdicts for %d claims", len(verdicts), len(claims))
					}
					return f.db.AddEffect(ctx, tx, "work")
				})
				if err != nil || calls != 1 {
					f.Fatalf("%d claims: work was called %d times, error %v", len(claims), calls, err)
				}
			}
			f.wantEffects("work", 2)
		}},
		{"DistinctIDsNeverCollide", distinctIDsNeverCollide[Tx]},
		{"ImpossibleClaimIsRefusedByFieldName", impossibleClaimIsRefusedByFieldName[Tx]},
		{"BatchOfThousandsIsOneCall", func(f *fixture[Tx]) {
			var claims []idempotency.Claim
			for i := range 2000 {
				claims = append(claims, claimOf(fmt.Sprintf("key-%d", i*7919%2000)))
			}
			err := f.store.Atomic(f.Context(), claims, func(_ context.Context, _ Tx, verdicts []idempotency.Verdict) error {
				for i, verdict := range verdicts {
					if verdict != fresh {
						return fmt.Errorf("claim %d is %v", i, verdict)
					}
				}
				return nil
			})
			if err != nil {
				f.Fatal(err)
			}
			f.wantVerdict(claimOf("key-1999"), duplicate)
		}},
	}
}

func withFingerprint(key string, fingerprint []byte) idempotency.Claim {
	claim := claimOf(key)
	claim.Fingerprint = fingerprint
	return claim
}

func anotherFingerprintIsReused[Tx any](f *fixture[Tx]) {
	binary := []byte{0, 0xff, 'x', 0}
	f.wantVerdict(withFingerprint("a", binary), fresh)
	f.wantVerdict(withFingerprint("a", binary), duplicate)
	f.wantVerdict(withFingerprint("a", []byte{0, 0xff, 'x'}), reused)
	f.wantVerdict(withFingerprint("a", []byte{}), reused)
	f.wantVerdict(withFingerprint("a", binary), duplicate)
	f.wantVerdicts([]idempotency.Claim{
		withFingerprint("b", binary), withFingerprint("a", []byte("other")), withFingerprint("a", binary),
	}, fresh, reused, duplicate)
	f.wantEffects("a", 1)
}

func missingFingerprintIsNotCompared[Tx any](f *fixture[Tx]) {
	f.wantVerdict(withFingerprint("a", []byte("x")), fresh)
	f.wantVerdict(withFingerprint("a", nil), duplicate)

	// What a duplicate brings is not recorded: the record is the first one's.
	f.wantVerdict(withFingerprint("b", nil), fresh)
	f.wantVerdict(withFingerprint("b", []byte("x")), duplicate)
	f.wantVerdict(withFingerprint("b", []byte("y")), duplicate)
}

// strangeIDs are distinct, and each pair of neighbours is equal to something
// that is careless: a collation, a text type, a normal form, a cut, a hash.
func strangeIDs() []string {
	long := strings.Repeat("x", 10<<10)
	return []string{
		"a", "A", "a ", " a", "a\x00", "a\x00b", "\x00", "\x00\x00",
		"\xff", "\xfe", "\ufffd", "\xc3\x28", "\xed\xa0\x80", "\u00e9", "e\u0301", "\U0001f9fe",
		long, long + "y", long + "\x00", long[:idempotency.MaxStoredBytes], long[:idempotency.MaxStoredBytes+1],
		"sha256:", "sha256:a", idempotency.StoredForm(long), idempotency.StoredForm(idempotency.StoredForm(long)), "SHA256:",
		"'", "''", `"`, `\`, `\x00`, `\u0000`, "%", "_", "?", "$1", "{}", "[]", "null", "NULL", "0", "00", "1", "1.0", "01",
		"\n", "\r\n", "\t", "\u2028", ",", "a,b", `{"a"}`, "x'00'",
	}
}

func distinctIDsNeverCollide[Tx any](f *fixture[Tx]) {
	for _, place := range []struct {
		name  string
		claim func(id string) idempotency.Claim
	}{
		{"key", claimOf},
		{"scope", func(id string) idempotency.Claim {
			return idempotency.Claim{Scope: id, Key: "k", Retention: retention}
		}},
	} {
		for i, id := range strangeIDs() {
			if got := f.verdictOf(place.claim(id)); got != fresh {
				f.Errorf("%s %d (%.30q): %v, want it to be new", place.name, i, id, got)
			}
		}
		for i, id := range strangeIDs() {
			if got := f.verdictOf(place.claim(id)); got != duplicate {
				f.Errorf("%s %d (%.30q): %v the second time", place.name, i, id, got)
			}
		}
	}

	// The same in one batch, where the claims travel together.
	inBatch := func(want idempotency.Verdict) {
		f.Helper()
		var claims []idempotency.Claim
		for _, id := range strangeIDs() {
			claims = append(claims, idempotency.Claim{Scope: "batch" + id, Key: id, Fingerprint: []byte(id), Retention: retention})
		}
		err := f.store.Atomic(f.Context(), claims, func(_ context.Context, _ Tx, verdicts []idempotency.Verdict) error {
			for i, verdict := range verdicts {
				if verdict != want {
					f.Errorf("batch, id %d (%.30q): %v, want %v", i, claims[i].Key, verdict, want)
				}
			}
			return nil
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	inBatch(fresh)
	inBatch(duplicate)
}

// verdictOf claims without an effect, because effects have plain names.
func (f *fixture[Tx]) verdictOf(claim idempotency.Claim) (verdict idempotency.Verdict) {
	f.Helper()
	err := f.store.Atomic(f.Context(), []idempotency.Claim{claim}, func(_ context.Context, _ Tx, verdicts []idempotency.Verdict) error {
		verdict = verdicts[0]
		return nil
	})
	if err != nil {
		f.Fatalf("claim of scope %.30q, key %.30q: %v", claim.Scope, claim.Key, err)
	}
	return verdict
}

// impossibleClaims are by the field that is wrong, and how.
func impossibleClaims() map[string]idempotency.Claim {
	return map[string]idempotency.Claim{
		"Scope":                      {Key: "k", Retention: retention},
		"Key":                        {Scope: scope, Retention: retention},
		"Retention":                  {Scope: scope, Key: "k"},
		"Retention that is negative": {Scope: scope, Key: "k", Retention: -1},
		"Retention above the bound":  {Scope: scope, Key: "k", Retention: idempotency.MaxRetention + 1},
		"Retention without end":      {Scope: scope, Key: "k", Retention: math.MaxInt64},
	}
}

func impossibleClaimIsRefusedByFieldName[Tx any](f *fixture[Tx]) {
	for field, claim := range impossibleClaims() {
		f.Run(field, func(t *testing.T) {
			// The bad one stands second: none of the batch may be claimed.
			err := f.store.Atomic(t.Context(), []idempotency.Claim{claimOf("good"), claim}, func(context.Context, Tx, []idempotency.Verdict) error {
				t.Error("work was called")
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), strings.Fields(field)[0]) {
				t.Errorf("error %v does not name the field", err)
			}
		})
	}
	f.wantVerdict(claimOf("good"), fresh)
}
