package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// journal is a broker that refuses some events, once in a while all of a call.
type journal struct {
	mu     sync.Mutex
	events []outbox.Event
}

var errRefused = errors.New("refused")

func (j *journal) Publish(_ context.Context, events []outbox.Event) []error {
	results := make([]error, len(events))
	down := rand.IntN(20) == 0
	failed := map[string]bool{}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, event := range events {
		switch {
		case down:
			results[i] = outbox.ErrUnavailable
		case failed[string(event.Key)]:
			results[i] = outbox.ErrBehind
		case rand.IntN(30) == 0:
			results[i] = errRefused
			failed[string(event.Key)] = true
		default:
			j.events = append(j.events, event)
		}
	}
	return results
}

// TestRelaysOverOneFilePublishEveryEventInOrder: two instances that share nothing but
// the file, under both policies.
func TestRelaysOverOneFilePublishEveryEventInOrder(t *testing.T) {
	t.Parallel()
	for _, policy := range []outbox.Policy{outbox.BlockLane, outbox.ParkKey} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			relayOverOneFile(t, policy)
		})
	}
}

func relayOverOneFile(t *testing.T, policy outbox.Policy) {
	t.Helper()
	const keys, rounds = 8, 40
	d := newDatabase(t)
	broker := &journal{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 2)
	for range cap(ended) {
		relay := outbox.NewRelay(d.open(t, time.Minute), broker, outbox.RelayConfig{
			Name: "events", Lanes: 4, Policy: policy, MaxAttempts: 1000, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
			Lease: 5 * time.Second, Poll: 5 * time.Millisecond, Batch: 7, Logger: slog.New(slog.DiscardHandler),
		})
		go func() { ended <- relay.Run(ctx) }()
	}

	store := d.open(t, time.Minute)
	events := outbox.New(store)
	for round := range rounds {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for key := range keys {
			err := events.Publish(ctx, tx, outbox.Message{ID: fmt.Sprintf("%d/%04d", key, round), Topic: "orders", Key: fmt.Append(nil, key)})
			if err != nil {
				t.Fatal(err)
			}
		}
		end := tx.Commit
		if round%5 == 4 {
			end = tx.Rollback
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}

	// Published is what no lane has to come and nothing is set aside of.
	operator := outbox.NewOperator(store)
	for patience := time.After(2 * time.Minute); ; {
		relays, err := operator.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, relay := range relays {
			for _, lane := range relay.Status {
				left += lane.Events
				for _, n := range lane.Aside {
					left += n
				}
			}
		}
		if len(relays) > 0 && left == 0 {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-patience:
			t.Fatalf("%d events are left", left)
		}
	}
	stop()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}

	last, seen := map[string]string{}, map[string]bool{}
	for _, event := range broker.events {
		if key := string(event.Key); !seen[event.ID] {
			if event.ID < last[key] {
				t.Errorf("%s came after %s", event.ID, last[key])
			}
			seen[event.ID], last[key] = true, event.ID
		}
	}
	if want := keys * rounds * 4 / 5; len(seen) != want {
		t.Errorf("%d events came, want %d", len(seen), want)
	}
}
