package inbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

func TestLaterMessagesOfAParkedKeyWaitInOrder(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*testing.T, ...inbox.Option) *fixture{"each": setup, "bulk": setupBulk} {
		for _, batch := range []int{1, 10} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := setup(t, inbox.ParkKey(), inbox.Batch(batch))
				f.failOn(inbox.Permanent(errHandler), "x:1")
				f.wantOutcomes(f.process(keyed("x:1", "y:1", "x:2")...), "parked, processed, parked")
				f.wantOutcomes(f.process(keyed("x:3", "y:2", "x:2")...), "parked, processed, duplicate")
				f.wantLetters("x:1 permanent", "x:2 behind", "x:3 behind")
				f.wantEffects("y:1", "y:2")
				for _, letter := range f.store.letters {
					if !letter.ParksKey || (letter.Reason == inbox.ReasonBehind) != (letter.Error == "") {
						t.Errorf("dead letter is %+v", letter)
					}
				}
			})
		}
	}
}

func TestMessageBehindOneThatIsSetAsideInTheSameBatchFollows(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey(), inbox.Batch(10))
	ms := keyed("x:1", "x:2", "y:1", "y:2", "z:1")
	ms[0].ID = ""
	ms[2].Time = time.Now().Add(-365 * day)
	f.wantOutcomes(f.process(ms...), "parked, parked, parked, parked, processed")
	f.wantLetters(" missing_id", "x:2 behind", "y:1 too_old", "y:2 behind")
	if f.store.atomics != 1 {
		t.Errorf("%d transactions", f.store.atomics)
	}
}

func TestMessagesWithoutKeyAreNeverParkedBehindAnything(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.failOn(inbox.Permanent(errHandler), "a")
	f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
	if f.store.letters[0].ParksKey {
		t.Error("no key is parked")
	}
}

func TestEmptyKeyIsAKey(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.failOn(inbox.Permanent(errHandler), ":1")
	f.wantOutcomes(f.process(keyed(":1", ":2")...), "parked, parked")
}

func TestEqualKeysOfTwoTopicsAreStrangers(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey(), inbox.Batch(3))
	f.failOn(inbox.Permanent(errHandler), "x:1")
	ms := keyed("x:1", "x:2", "x:3")
	ms[1].Topic = "refunds"
	f.wantOutcomes(f.process(ms...), "parked, processed, parked")
}

// They are locks: two batches in opposite orders would deadlock.
func TestTopicsAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey(), inbox.Batch(3))
	ms := keyed("x:1", "x:2", "x:3")
	ms[0].Topic, ms[1].Topic, ms[2].Topic = "c", "a", "b"
	f.process(ms...)
	if got := f.store.lockedTopics; !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("locked in the order %q", got)
	}
}

func TestKeysAreNotParkedUnlessAsked(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn(inbox.Permanent(errHandler), "x:1")
	f.wantOutcomes(f.process(keyed("x:1", "x:2")...), "parked, processed")
}
