package inbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// A broker delivers again until everything is settled, the store and the handler
// fail at random: in the end each message has one effect or one dead letter, and
// with ParkKey each key is in order, its dead letters last.
func TestUnderRandomFaultsEveryMessageEndsOnceAndInOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomFaults(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func randomFaults(t *testing.T, random *rand.Rand) {
	t.Helper()
	options := []inbox.Option{inbox.ParkKey(), inbox.MaxAttempts(3), inbox.Batch(1 + random.IntN(5)), inbox.HandlerTimeout(time.Second)}
	f := setup(t, options...)
	bulk := random.IntN(2) == 0
	if bulk {
		f = setupBulk(t, options...)
	}
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("%c:%02d", 'a'+rune(random.IntN(4)), i))
	}
	for range 40 {
		f.store.beginFaults = append(f.store.beginFaults, oneOf(random, nil, nil, nil,
			idempotency.ErrUnavailable, idempotency.ErrConflict, idempotency.ErrInProgress))
		f.store.countFaults = append(f.store.countFaults, oneOf(random, nil, nil, idempotency.ErrUnavailable))
		f.store.commitFaults = append(f.store.commitFaults, oneOf(random, commitFault{}, commitFault{},
			commitFault{err: idempotency.ErrCommitUnknown}, commitFault{idempotency.ErrCommitUnknown, true}, commitFault{err: idempotency.ErrConflict}))
	}
	var mu sync.Mutex // an abandoned handler shares nothing with this goroutine but what it locks
	roll := func(sides int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(sides)
	}
	release := make(chan struct{})
	f.on = func(_ context.Context, tx *fakeTx, _ inbox.Message) error {
		sides := 40
		if bulk {
			sides = 30 // a bulk handler that commits half its work leaves a letter for all of it
		}
		switch roll(sides) {
		case 0:
			panic("random")
		case 1:
			runtime.Goexit()
		case 2:
			return inbox.Permanent(errHandler)
		case 3:
			tx.Rollback()
		case 4:
			<-release
		case 5, 6, 7:
			return errHandler
		case 30:
			tx.Commit()
			return errHandler
		case 31:
			tx.Commit()
			panic("random")
		case 32:
			tx.Commit()
			runtime.Goexit()
		case 33:
			tx.Commit()
			<-release
		}
		return nil
	}
	ms := keyed(names...)
	for start := 0; start < len(ms); {
		results, err := f.inbox.Process(t.Context(), ms[start:min(start+7, len(ms))])
		failed := false
		for _, result := range results {
			switch {
			case result.Settled() && !failed:
				start++
			case result.Settled():
				t.Fatalf("settled behind one that was not: %s", outcomes(results))
			case result.Outcome == inbox.Failed && (err != nil || failed):
				t.Fatalf("failed twice, or failed and an error: %s, %v", outcomes(results), err)
			default:
				failed = true
			}
		}
		if failed && err == nil && !slices.ContainsFunc(results, func(r inbox.Result) bool { return r.Outcome == inbox.Failed }) {
			t.Fatalf("neither failed nor an error: %s", outcomes(results))
		}
		if start > 0 && roll(3) == 0 {
			start -= 1 + roll(min(start, 5)) // delivered again
		}
	}
	close(release)
	synctest.Wait()
	ends := slices.Clone(f.store.effects)
	for _, letter := range f.store.letters {
		ends = append(ends, letter.Message.ID)
	}
	for key := 'a'; key < 'e'; key++ {
		ofKey := func(id string) bool { return rune(id[0]) != key }
		want := slices.DeleteFunc(slices.Clone(names), ofKey)
		if got := slices.DeleteFunc(slices.Clone(ends), ofKey); !slices.Equal(got, want) {
			t.Errorf("key %c ended as %q, want %q", key, got, want)
		}
	}
}

func oneOf[T any](random *rand.Rand, choices ...T) T { return choices[random.IntN(len(choices))] }
