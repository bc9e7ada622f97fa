package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// Random schedules of writers, a broker and a store that fail, two to four instances,
// and operators: every event is published, and of each key in order when copies are
// removed.
func TestRandomSchedulesLoseNothingAndKeepOrder(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			simulate(t, func(f *fixture) { randomSchedule(f, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomSchedule(f *fixture, random *rand.Rand) {
	policy := []outbox.Policy{outbox.BlockLane, outbox.ParkKey}[random.IntN(2)]
	change := func(c *outbox.RelayConfig) {
		c.Policy, c.Lanes, c.MaxAttempts, c.BackoffMax = policy, 1+random.IntN(8), 1_000_000, time.Second
		c.Batch, c.Lease, c.StopTimeout = 1+random.IntN(40), 2*time.Second, time.Second
	}
	config := f.config()
	change(&config)
	fixed := func(c *outbox.RelayConfig) { *c = config }

	var faults atomicRate
	faults.set(0.2)
	f.broker.on = func(ctx context.Context, _ outbox.Event) error {
		pause(ctx, time.Duration(rand.IntN(20))*time.Millisecond)
		switch {
		case !faults.hits():
			return nil
		case rand.IntN(2) == 0:
			return outbox.ErrUnavailable
		default:
			return errRefused
		}
	}
	f.store.faults(func(ctx context.Context, statement string) error {
		pause(ctx, time.Duration(rand.IntN(3))*time.Millisecond)
		if statement != "Append" && statement != "Register" && faults.hits() && rand.IntN(3) == 0 {
			return idempotency.ErrUnavailable
		}
		return nil
	}, func(_ context.Context, statement string) error {
		if statement == "Settle" && faults.hits() && rand.IntN(5) == 0 {
			return idempotency.ErrCommitUnknown
		}
		return nil
	})

	var instances []*instance
	for range 2 + random.IntN(3) {
		instances = append(instances, f.run(fixed))
	}
	var want []string
	written := map[byte]int{}
	for range 60 {
		tx := f.store.Begin()
		for range random.IntN(8) {
			key := "abcdefgh-"[random.IntN(9)]
			written[key]++
			id := fmt.Sprintf("%c%d", key, written[key])
			want = append(want, id)
			f.appendIn(tx, event(id))
		}
		// A key's transactions commit in their order, as if they waited for each other.
		f.store.Commit(tx)
		f.pass(time.Duration(random.IntN(300)) * time.Millisecond)
		switch random.IntN(12) {
		case 0: // A clean stop, and another one.
			n := random.IntN(len(instances))
			instances[n].cancel()
			if err := <-instances[n].ended; err != nil {
				f.Log(err) // It could not save.
			}
			instances[n] = f.run(fixed)
		case 1: // The instance can reach nothing for longer than its lease.
			_ = f.store.operate(f.Context(), "Expire", "events", func(*fakeRelay) {})
		}
	}
	faults.set(0)
	f.pass(3 * time.Minute)
	for _, i := range instances {
		i.stop()
	}
	f.wantFirsts(string(policy), want)
	f.wantStates(map[string]outbox.State{})
	f.wantSaved(fixed)
	if f.Failed() {
		f.Log("\n" + f.logs.String()[max(0, f.logs.Len()-4000):])
	}
}

// wantFirsts fails unless of each key these were sent, in this order but for copies.
func (f *fixture) wantFirsts(about string, want []string) {
	f.Helper()
	got := firstOf(f.broker.ids())
	for _, key := range "-abcdefgh" {
		of := func(ids []string) []string {
			ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return rune(id[0]) != key })
			if key == '-' {
				slices.Sort(ids) // No order is promised.
			}
			return ids
		}
		if !slices.Equal(of(got), of(want)) {
			f.Errorf("%s, key %c: published\n%q, want\n%q", about, key, of(got), of(want))
		}
	}
}

// firstOf leaves out copies.
func firstOf(ids []string) (first []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			first = append(first, id)
			seen[id] = true
		}
	}
	return first
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
