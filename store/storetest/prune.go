package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/idempotency"
)

func pruneRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"RecordLivesForItsRetention", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			f.db.Age(f.T, retention-time.Hour)
			f.pruneAll(0)
			f.wantVerdict(claimOf("a"), duplicate)
		}},
		{"ExpiredRecordIsFreeOncePruned", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			f.db.Age(f.T, retention+time.Hour)
			f.pruneAll(1)
			f.wantVerdict(claimOf("a"), fresh)
			f.wantEffects("a", 2)
		}},
		{"DuplicateDoesNotProlongTheRecord", func(f *fixture[Tx]) {
			f.wantVerdict(claimOf("a"), fresh)
			f.db.Age(f.T, retention/2)
			f.wantVerdict(claimOf("a"), duplicate)
			f.db.Age(f.T, retention/2+time.Hour)
			f.pruneAll(1)
		}},
		{"RetentionIsPerRecord", func(f *fixture[Tx]) {
			short, long := claimOf("short"), claimOf("long")
			short.Retention, long.Retention = time.Minute, 365*24*time.Hour
			f.wantVerdicts([]idempotency.Claim{short, long}, fresh, fresh)
			f.db.Age(f.T, time.Hour)
			f.pruneAll(1)
			f.wantVerdict(short, fresh)
			f.wantVerdict(long, duplicate)
		}},
		{"LongestRetentionIsLong", func(f *fixture[Tx]) {
			claim := claimOf("a")
			claim.Retention = idempotency.MaxRetention
			f.wantVerdicts([]idempotency.Claim{claim, claimOf("b")}, fresh, fresh)
			claim.Key = "c"
			f.wantVerdict(claim, fresh)
			if got, err := f.store.CountAttempt(f.Context(), scope, "a", "cause", claim.Retention); err != nil || got != 1 {
				f.Fatalf("attempt %d, error %v", got, err)
			}
			f.db.Age(f.T, idempotency.MaxRetention-time.Hour)
			f.pruneAll(1)
			f.wantVerdicts(claimsOf("a", "b", "c"), duplicate, fresh, duplicate)
		}},
		{"PruneIsBounded", func(f *fixture[Tx]) {
			f.expire(25)
			for _, want := range []int{10, 10, 5, 0} {
				got, err := f.store.Prune(f.Context(), 10)
				if err != nil || got != want {
					f.Fatalf("pruned %d, error %v, want %d", got, err, want)
				}
			}
		}},
		{"OneLimitBoundsRecordsAndAttemptsTogether", func(f *fixture[Tx]) {
			for i := range 6 {
				f.wantAttempt(scope, fmt.Sprintf("failed-%d", i), 1)
			}
			f.expire(6)
			first, err := f.store.Prune(f.Context(), 10)
			if err != nil || first > 10 {
				f.Fatalf("pruned %d, error %v, want at most 10", first, err)
			}
			f.pruneAll(12 - first)
		}},
		{"PrunersAtOnceNeverCountARecordTwice", prunersAtOnce[Tx]},
		{"PruneTouchesNoDeadLetter", func(f *fixture[Tx]) {
			f.add(letterOf("a"))
			f.db.Age(f.T, 10*365*24*time.Hour)
			f.pruneAll(0)
			f.wantLetters(consumer, "a")
		}},
	}
}

// expire records n claims and lets their retention pass.
func (f *fixture[Tx]) expire(n int) {
	f.Helper()
	var claims []idempotency.Claim
	for i := range n {
		claims = append(claims, claimOf(fmt.Sprintf("expired-%d", i)))
	}
	if _, err := f.carryOut(f.Context(), f.store, claims...); err != nil {
		f.Fatal(err)
	}
	f.db.Age(f.T, retention+time.Hour)
}

// pruneAll prunes, alone, until nothing is left and wants this total.
func (f *fixture[Tx]) pruneAll(want int) {
	f.Helper()
	total := 0
	for {
		n, err := f.store.Prune(f.Context(), 100)
		if err != nil {
			f.Fatalf("prune: %v", err)
		}
		if n == 0 {
			break
		}
		total += n
	}
	if total != want {
		f.Fatalf("pruned %d records, want %d", total, want)
	}
}

func prunersAtOnce[Tx any](f *fixture[Tx]) {
	const expired = 60
	f.expire(expired)
	f.wantVerdict(claimOf("alive"), fresh)
	other := f.db.Open(f.T, patience)
	totals := make([]int, 4)
	f.inParallel(len(totals), func(i int) error {
		store := f.store
		if i%2 == 1 {
			store = other
		}
		// Zero may mean that another one is at work: a fixed number of calls.
		for range 10 {
			n, err := store.Prune(f.Context(), 7)
			if err != nil && !errors.Is(err, idempotency.ErrInProgress) {
				return err
			}
			if n > 7 {
				return fmt.Errorf("pruned %d with a limit of 7", n)
			}
			totals[i] += n
		}
		return nil
	})
	sum := 0
	for _, n := range totals {
		sum += n
	}
	f.pruneAll(expired - sum)
	f.wantVerdict(claimOf("alive"), duplicate)
}
