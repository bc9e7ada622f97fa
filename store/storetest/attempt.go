package storetest

import (
	"context"
	"strings"
	"time"
)

func attemptRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"AttemptsAreCountedFromOnePerRecord", func(f *fixture[Tx]) {
			for want := 1; want <= 3; want++ {
				f.wantAttempt(scope, "a", want)
			}
			f.wantAttempt(scope, "b", 1)
			f.wantAttempt("another", "a", 1)
			f.wantAttempt(scope, "a", 4)
		}},
		{"AttemptsSurviveTheRollbackOfTheWork", func(f *fixture[Tx]) {
			for want := 1; want <= 3; want++ {
				err := f.atomicEffect(f.Context(), "a", func(Tx) error { return errWork })
				f.wantIs(err, errWork)
				f.wantAttempt(scope, "a", want)
			}
			f.wantVerdict(claimOf("a"), fresh) // Counting claims nothing.
		}},
		{"AttemptsOfStrangeIDsAreToldApart", func(f *fixture[Tx]) {
			for want := 1; want <= 2; want++ {
				for _, id := range strangeIDs() {
					f.wantAttempt(scope, id, want)
				}
			}
		}},
		{"AnyTextIsACause", func(f *fixture[Tx]) {
			for i, cause := range []string{
				"", "plain", "nul \x00 inside", "not \xff UTF-8 \xed\xa0\x80", strings.Repeat("long ", 100_000), strings.Repeat("é", 70_000),
			} {
				got, err := f.store.CountAttempt(f.Context(), scope, "a", cause, retention)
				if err != nil || got != i+1 {
					f.Fatalf("cause %.20q: attempt %d, error %v", cause, got, err)
				}
			}
		}},
		{"ConcurrentAttemptsAreAllCounted", func(f *fixture[Tx]) {
			other := f.db.Open(f.T, patience)
			f.inParallel(16, func(i int) error {
				store := f.store
				if i%2 == 1 {
					store = other
				}
				ctx, cancel := context.WithTimeout(f.Context(), soon)
				defer cancel()
				for {
					if _, err := store.CountAttempt(ctx, scope, "a", "cause", retention); err == nil || !lost(err) {
						return err
					}
				}
			})
			f.wantAttempt(scope, "a", 17)
		}},
		{"AttemptsAreForgottenAfterTheirRetention", func(f *fixture[Tx]) {
			f.wantAttempt(scope, "a", 1)
			f.wantAttempt(scope, "a", 2)
			f.db.Age(f.T, retention-time.Hour)
			f.pruneAll(0)
			f.wantAttempt(scope, "a", 3)
			f.db.Age(f.T, retention+time.Hour)
			f.pruneAll(1)
			f.wantAttempt(scope, "a", 1)
		}},
		{"ExpiredCountStartsAgainAtOneEvenIfNothingWasPruned", func(f *fixture[Tx]) {
			f.wantAttempt(scope, "a", 1)
			f.wantAttempt(scope, "a", 2)
			f.db.Age(f.T, retention+time.Hour)
			f.wantAttempt(scope, "a", 1)
			f.wantAttempt(scope, "a", 2)
			f.pruneAll(0) // The new count lives for its own retention.
		}},
		{"ImpossibleAttemptIsRefusedByFieldName", impossibleAttemptIsRefused[Tx]},
	}
}

func impossibleAttemptIsRefused[Tx any](f *fixture[Tx]) {
	for field, claim := range impossibleClaims() {
		n, err := f.store.CountAttempt(f.Context(), claim.Scope, claim.Key, "cause", claim.Retention)
		if err == nil || !strings.Contains(err.Error(), strings.Fields(field)[0]) {
			f.Errorf("%s: attempt %d, error %v does not name the field", field, n, err)
		}
	}
}

func (f *fixture[Tx]) wantAttempt(scope, key string, want int) {
	f.Helper()
	got, err := f.store.CountAttempt(f.Context(), scope, key, "cause", retention)
	if err != nil || got != want {
		f.Fatalf("attempt at %.30q: %d, error %v, want %d", key, got, err, want)
	}
}
