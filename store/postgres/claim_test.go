package postgres

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
)

func claimed(scope, key string, fingerprint []byte) idempotency.Claim {
	return idempotency.Claim{Scope: scope, Key: key, Fingerprint: fingerprint, Retention: time.Hour}
}

func TestClaimsAreLockedInOneOrderAndEqualOnesOnce(t *testing.T) {
	t.Parallel()
	set, err := newClaimSet([]idempotency.Claim{
		claimed("b", "1", nil), claimed("a", "2", nil), claimed("a", "10", []byte("x")), claimed("b", "1", nil), claimed("a", "10", []byte("y")),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := &Database[struct{}]{settings: settings{claimWait: time.Second}}
	args := d.claim(set).args
	want := []any{`{"a","a","b"}`, `{"10","2","1"}`, `{"\\x78","",""}`, `{3600000000,3600000000,3600000000}`, "1000ms"}
	if !slices.Equal(args, want) {
		t.Errorf("got  %v\nwant %v", args, want)
	}
}

func TestRowsInsertedDecideTheVerdicts(t *testing.T) {
	t.Parallel()
	set, err := newClaimSet([]idempotency.Claim{
		claimed("s", "c", nil), claimed("s", "a", []byte("x")), claimed("s", "b", nil),
		claimed("s", "a", []byte("y")), claimed("s", "a", []byte("x")), claimed("s", "c", nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := &Database[struct{}]{}
	q := d.claim(set)
	for _, row := range [][3]*string{{new("s"), new("a")}, {new("s"), new("c")}, {nil, nil, new("0")}} {
		if err := q.row(rowOf(row)); err != nil {
			t.Fatal(err)
		}
	}
	const fresh, duplicate, reused = idempotency.Fresh, idempotency.Duplicate, idempotency.Reused
	want := []idempotency.Verdict{fresh, fresh, duplicate, reused, duplicate, duplicate}
	if got := set.verdicts(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if lost := set.lostWithFingerprint(); len(lost) != 0 {
		t.Errorf("%d fingerprints are read, though no lost claim has one", len(lost))
	}
}

type rowOf [3]*string

func (r rowOf) Scan(dest ...any) error {
	for i, d := range dest {
		*d.(**string) = r[i] //nolint:forcetypeassert // A panic is as good a failure.
	}
	return nil
}

func TestRecordNeverLivesForLessThanItsRetention(t *testing.T) {
	t.Parallel()
	for retention, want := range map[time.Duration]int64{
		1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Hour: 3_600_000_000,
		idempotency.MaxRetention: 3_153_600_000_000_000, math.MaxInt64: 9_223_372_036_854_776,
	} {
		if got := microseconds(retention); got != want {
			t.Errorf("%v is %d µs, want %d", retention, got, want)
		}
	}
}
