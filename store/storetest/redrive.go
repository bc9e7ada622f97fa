package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func parkedKeyRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"KeyOfALetterThatParksItIsParked", func(f *fixture[Tx]) {
			plain := keyed("plain", "free")
			plain.ParksKey = false
			f.add(keyed("a", "k"), plain)
			f.wantParkedKeys(topic, [][]byte{[]byte("free"), []byte("k"), []byte("unknown"), []byte("k")}, false, true, false, true)
			f.wantParkedKeys(otherTopic, [][]byte{[]byte("k")}, false)
			f.wantParkedKeys(topic, nil)
		}},
		{"KeysAreComparedByBytes", func(f *fixture[Tx]) {
			f.add(keyed("a", ""), keyed("b", "\x00\xff"), keyed("c", "K"))
			f.wantParkedKeys(topic, [][]byte{{}, nil, []byte("\x00\xff"), []byte("\x00"), []byte("k"), []byte("K")},
				true, false, true, false, false, true)
		}},
		{"TopicsAreComparedByBytes", func(f *fixture[Tx]) {
			letter := keyed("a", "k")
			letter.Message.Topic = "odd \x00 \xff"
			f.add(letter)
			f.wantParked("odd \x00 \xff", "k", true)
			f.wantParked("odd \x00 \xfe", "k", false)
			f.wantParked("odd ", "k", false)
		}},
		{"LetterParksItsKeyWithinItsOwnTransaction", func(f *fixture[Tx]) {
			err := f.store.Atomic(f.Context(), nil, func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
				if err := f.store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{keyed("a", "k")}); err != nil {
					return err
				}
				parked, err := f.store.ParkedKeys(ctx, tx, consumer, topic, [][]byte{[]byte("k")})
				if err == nil && !parked[0] {
					err = errors.New("not parked")
				}
				return err
			})
			if err != nil {
				f.Fatal(err)
			}
		}},
		{"ManyKeysAreOneQuestion", func(f *fixture[Tx]) {
			f.add(keyed("a", "key-70"), keyed("b", "key-1999"))
			var keys [][]byte
			for i := range 2000 {
				keys = append(keys, fmt.Appendf(nil, "key-%d", i))
			}
			want := make([]bool, len(keys))
			want[70], want[1999] = true, true
			f.wantParkedKeys(topic, keys, want...)
		}},
		{"TakingTheLastLetterFreesTheKey", func(f *fixture[Tx]) {
			f.add(keyed("a", "k"), keyed("b", "k"))
			f.take("a")
			f.wantParked(topic, "k", true)
			f.take("b")
			f.wantParked(topic, "k", false)
		}},
		{"DiscardingTheLastLetterFreesTheKey", func(f *fixture[Tx]) {
			f.add(keyed("a", "k"), keyed("b", "k"), keyed("c", "other"))
			f.discard(inbox.Filter{MessageID: "b"}, 1)
			f.wantParked(topic, "k", true)
			f.discard(inbox.Filter{MessageID: "a"}, 1)
			f.wantParked(topic, "k", false)
			f.wantParked(topic, "other", true)
			f.discard(inbox.Filter{}, 1)
			f.wantParked(topic, "other", false)
		}},
		{"MessageParkedBehindALetterIsNeverLeftInAFreeKey", neverLeftInAFreeKey[Tx]},
		{"NobodyWaitsForARedriveLongerThanTheClaimWait", nobodyWaitsForARedrive[Tx]},
	}
}

// neverLeftInAFreeKey races "is the key parked? then I wait behind it" with the
// removal of the last letter there.
func neverLeftInAFreeKey[Tx any](f *fixture[Tx]) {
	other := f.db.Open(f.T, patience)
	for round := range 20 {
		key := fmt.Sprintf("key-%d", round)
		f.add(keyed("first "+key, key))
		number := f.letters(consumer, inbox.Filter{Key: []byte(key)})[0].Number
		var waits atomic.Bool
		f.inParallel(2, func(i int) error {
			if i == 0 {
				return untilNotLost(func() error {
					if round%2 == 0 {
						_, err := other.DiscardDeadLetters(f.Context(), consumer, limited(inbox.Filter{Numbers: []int64{number}}))
						return err
					}
					return other.TakeDeadLetter(f.Context(), consumer, number, func(context.Context, Tx, inbox.DeadLetter) error { return nil })
				})
			}
			return untilNotLost(func() error {
				return f.store.Atomic(f.Context(), nil, func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
					parked, err := f.store.ParkedKeys(ctx, tx, consumer, topic, [][]byte{[]byte(key)})
					waits.Store(err == nil && parked[0])
					if err != nil || !parked[0] {
						return err
					}
					letter := keyed("second "+key, key)
					letter.Reason = inbox.ReasonBehind
					return f.store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letter})
				})
			})
		})
		f.wantParked(topic, key, waits.Load())
	}
}

// nobodyWaitsForARedrive: one hung handler under a redrive must not hang the
// consumers of its key as well.
func nobodyWaitsForARedrive[Tx any](f *fixture[Tx]) {
	f.add(keyed("a", "k"), keyed("b", "k"))
	other := f.db.Open(f.T, impatience)
	for _, letter := range f.letters(consumer, inbox.Filter{}) { // The first leaves the key parked, the second frees it.
		calls := map[string]func() error{
			"set aside": func() error { return f.tryAdd(other, letterOf("x"), keyed("c", "k")) },
			"take":      func() error { return f.takeNumber(other, letter.Number, nil) },
			"note":      func() error { return other.FailDeadLetter(f.Context(), consumer, letter.Number, "cause") },
			"discard": func() error {
				_, err := other.DiscardDeadLetters(f.Context(), consumer, limited(inbox.Filter{}))
				return err
			},
			"is parked?": func() error {
				return other.Atomic(f.Context(), nil, func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
					_, err := other.ParkedKeys(ctx, tx, consumer, topic, [][]byte{[]byte("k")})
					return err
				})
			},
		}
		err := f.store.TakeDeadLetter(f.Context(), consumer, letter.Number, func(context.Context, Tx, inbox.DeadLetter) error {
			for doing, call := range calls {
				began := time.Now()
				f.wantIs(call(), idempotency.ErrInProgress)
				if took := time.Since(began); took > impatience+2*time.Second {
					f.Errorf("%s: answered after %v, the claim wait is %v", doing, took, impatience)
				}
			}
			return nil
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	f.wantLetters(consumer)
	f.wantParked(topic, "k", false)
}

func untilNotLost(run func() error) error {
	for {
		if err := run(); !lost(err) {
			return err
		}
	}
}

func (f *fixture[Tx]) wantParked(topic, key string, want bool) {
	f.Helper()
	f.wantParkedKeys(topic, [][]byte{[]byte(key)}, want)
}

func (f *fixture[Tx]) wantParkedKeys(topic string, keys [][]byte, want ...bool) {
	f.Helper()
	var got []bool
	err := f.store.Atomic(f.Context(), nil, func(ctx context.Context, tx Tx, _ []idempotency.Verdict) (err error) {
		if got, err = f.store.ParkedKeys(ctx, tx, consumer, topic, keys); err != nil {
			return err
		}
		return errGiveUp
	})
	f.wantIs(err, errGiveUp)
	if !slices.Equal(got, want) {
		f.Fatalf("parked keys of %q: %v, want %v", topic, got, want)
	}
}

func redriveRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"TakeRemovesTheLetterWithItsEffect", func(f *fixture[Tx]) {
			f.add(letterOf("a"), letterOf("b"))
			f.take("a")
			f.wantEffects("a", 1)
			f.wantLetters(consumer, "b")
		}},
		{"FailedTakeKeepsTheLetterAndItsKey", func(f *fixture[Tx]) {
			f.add(keyed("a", "k"))
			f.wantIs(f.tryTake(f.store, "a", errWork), errWork)
			f.wantEffects("a", 0)
			f.wantLetters(consumer, "a")
			f.wantParked(topic, "k", true)
			f.take("a")
			f.wantEffects("a", 1)
		}},
		{"PanicInATakeKeepsTheLetter", func(f *fixture[Tx]) {
			f.add(keyed("a", "k"))
			number := f.letters(consumer, inbox.Filter{})[0].Number
			func() {
				defer func() {
					if got := recover(); got != "boom" {
						f.Errorf("recovered %v", got)
					}
				}()
				_ = f.store.TakeDeadLetter(f.Context(), consumer, number, func(context.Context, Tx, inbox.DeadLetter) error { panic("boom") })
			}()
			f.wantLetters(consumer, "a")
			f.take("a")
		}},
		{"EndedContextKeepsTheLetter", func(f *fixture[Tx]) {
			f.add(letterOf("a"))
			number := f.letters(consumer, inbox.Filter{})[0].Number
			ctx, cancel := context.WithCancel(f.Context())
			defer cancel()
			err := f.store.TakeDeadLetter(ctx, consumer, number, func(context.Context, Tx, inbox.DeadLetter) error {
				cancel()
				return nil
			})
			f.wantIs(err, context.Canceled)
			f.wantLetters(consumer, "a")
		}},
		{"TakeOfARemovedLetterIsGone", func(f *fixture[Tx]) {
			f.add(letterOf("a"), letterOf("b"))
			letters := f.letters(consumer, inbox.Filter{})
			f.take("a")
			f.discard(inbox.Filter{MessageID: "b"}, 1)
			for _, number := range []int64{letters[0].Number, letters[1].Number, 0, -1, 1 << 60} {
				err := f.store.TakeDeadLetter(f.Context(), consumer, number, func(context.Context, Tx, inbox.DeadLetter) error {
					f.Error("work was called")
					return nil
				})
				f.wantIs(err, inbox.ErrGone)
			}
		}},
		{"TakeBehindAnOlderLetterOfTheKeyIsRefused", takeBehindIsRefused[Tx]},
		{"ConcurrentTakersMakeOneEffect", func(f *fixture[Tx]) {
			stores := []inbox.Store[Tx]{f.store, f.db.Open(f.T, patience)}
			for round := range 5 {
				id := fmt.Sprintf("letter-%d", round)
				f.add(letterOf(id))
				number := f.letters(consumer, inbox.Filter{MessageID: id})[0].Number
				var won atomic.Int32
				f.inParallel(4, func(i int) error {
					err := untilNotLost(func() error { return f.takeNumber(stores[i%2], number, nil) })
					if err == nil {
						won.Add(1)
					}
					if errors.Is(err, inbox.ErrGone) {
						return nil
					}
					return err
				})
				if won.Load() != 1 {
					f.Fatalf("%d takers won", won.Load())
				}
				f.wantEffects(id, 1)
			}
			f.wantLetters(consumer)
		}},
		{"FailedRedriveAddsAnAttemptAndItsError", func(f *fixture[Tx]) {
			f.add(keyed("a", "k"), letterOf("b"))
			number := f.letters(consumer, inbox.Filter{})[0].Number
			for i, cause := range []string{"nul \x00, \xff", "still broken"} {
				if err := f.store.FailDeadLetter(f.Context(), consumer, number, cause); err != nil {
					f.Fatalf("failure %d: %v", i, err)
				}
			}
			letters := f.letters(consumer, inbox.Filter{})
			if got := letters[0]; got.Attempts != 7 || got.Error != "still broken" || got.Reason != inbox.ReasonAttempts || !got.ParksKey {
				f.Errorf("after two failures: %+v", got)
			}
			if got := letters[1]; got.Attempts != 5 || got.Error != "card service: timeout" {
				f.Errorf("its neighbour changed: %+v", got)
			}
		}},
	}
}

func takeBehindIsRefused[Tx any](f *fixture[Tx]) {
	elsewhere := keyed("elsewhere", "k")
	elsewhere.Message.Topic = otherTopic
	theirs := keyed("theirs", "k")
	theirs.Consumer = "shipping"
	f.add(theirs, elsewhere, keyed("first", "k"), keyed("other", "j"), keyed("second", "k"), keyed("third", "k"))

	for _, id := range []string{"second", "third"} {
		f.wantIs(f.tryTake(f.store, id, nil), inbox.ErrBehind)
		f.wantEffects(id, 0)
	}
	f.take("other")
	f.wantIs(f.tryTake(f.store, "first", errWork), errWork)
	f.wantIs(f.tryTake(f.store, "second", nil), inbox.ErrBehind)
	f.take("first")
	f.wantIs(f.tryTake(f.store, "third", nil), inbox.ErrBehind)
	f.discard(inbox.Filter{MessageID: "second"}, 1)
	f.take("third")
	f.take("elsewhere")
	f.wantLetters(consumer)
	f.wantLetters("shipping", "theirs")
}

// take redrives the oldest dead letter with this message ID.
func (f *fixture[Tx]) take(id string) {
	f.Helper()
	if err := f.tryTake(f.store, id, nil); err != nil {
		f.Fatalf("take %q: %v", id, err)
	}
}

func (f *fixture[Tx]) tryTake(store inbox.Store[Tx], id string, result error) error {
	f.Helper()
	letters := f.letters(consumer, inbox.Filter{MessageID: id})
	if len(letters) == 0 {
		f.Fatalf("no dead letter %q", id)
	}
	return f.takeNumber(store, letters[0].Number, result)
}

func (f *fixture[Tx]) takeNumber(store inbox.Store[Tx], number int64, result error) error {
	return store.TakeDeadLetter(f.Context(), consumer, number, func(ctx context.Context, tx Tx, letter inbox.DeadLetter) error {
		if err := f.db.AddEffect(ctx, tx, letter.Message.ID); err != nil {
			return err
		}
		return result
	})
}
