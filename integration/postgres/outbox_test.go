package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
)

// registrationOf is a relay with four lanes.
func registrationOf(relay string, topics ...string) outbox.Registration {
	return outbox.Registration{Relay: relay, Lanes: 4, Topics: topics, Policy: outbox.BlockLane, Retention: time.Hour}
}

// follower is an instance of a relay that publishes to the test.
type follower struct {
	t     *testing.T
	store outbox.RelayStore
	relay outbox.Registration
	name  string
	owned []outbox.OwnedLane
	// limit is how many events it reads at a time.
	limit int
}

// follow registers a relay and takes its lanes.
func follow(t *testing.T, store outbox.RelayStore, relay outbox.Registration, name string) *follower {
	t.Helper()
	if err := store.Register(t.Context(), relay); err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, store: store, relay: relay, name: name, limit: 100}
	f.take()
	return f
}

func (f *follower) take() {
	f.t.Helper()
	lease, err := f.store.Lease(f.t.Context(), f.relay.Relay, f.name, time.Hour)
	if err != nil {
		f.t.Fatal(err)
	}
	f.owned = lease.Lanes
}

// together are the lanes that stand where the first one does.
func (f *follower) together() (lanes []int) {
	for _, l := range f.owned {
		if l.Position == f.owned[0].Position {
			lanes = append(lanes, l.Lane)
		}
	}
	return lanes
}

// read reads one chunk for the lanes that stand together, and moves behind it.
func (f *follower) read() outbox.Chunk {
	f.t.Helper()
	lanes := f.together()
	chunk, err := f.store.Read(f.t.Context(), outbox.ReadRequest{
		Relay: f.relay.Relay, Lanes: lanes, AllLanes: f.relay.Lanes, Topics: f.relay.Topics,
		Position: f.owned[0].Position, Limit: f.limit, MaxBytes: 1 << 20,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range f.owned {
		if slices.Contains(lanes, f.owned[i].Lane) {
			f.owned[i].Position = chunk.End
		}
	}
	// Others first, next time.
	f.owned = append(f.owned[1:], f.owned[0])
	return chunk
}

// save settles where it stands.
func (f *follower) save(aside ...outbox.Aside) {
	f.t.Helper()
	if len(f.owned) == 0 {
		return
	}
	s := outbox.Settlement{Relay: f.relay.Relay, Instance: f.name, Aside: aside}
	for _, l := range f.owned {
		s.Lanes = append(s.Lanes, outbox.LaneProgress{OwnedLane: l})
	}
	settled, err := f.store.Settle(f.t.Context(), s)
	if err != nil || len(settled.Lost) > 0 {
		f.t.Fatalf("lost %v, error %v", settled.Lost, err)
	}
}

// all reads to the end and saves.
func (f *follower) all() (ids []string) {
	f.t.Helper()
	for idle := 0; idle < len(f.owned); {
		chunk := f.read()
		for _, e := range chunk.Events {
			ids = append(ids, e.ID)
		}
		if idle++; len(chunk.Events) > 0 || chunk.More {
			idle = 0
		}
	}
	f.save()
	return ids
}

// eventsOf are n events of a topic with keys.
func eventsOf(topic, prefix string, n int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = outbox.Message{
			ID: fmt.Sprintf("%s-%d", prefix, i), Topic: topic, Key: fmt.Appendf(nil, "key-%d", i), Payload: []byte("payload"),
		}
	}
	return messages
}

func idsOf(messages []outbox.Message) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// publish writes events in a transaction, which is committed by calling commit.
func publish(t *testing.T, pool *pgxpool.Pool, store outbox.Store[pgx.Tx], messages ...outbox.Message) (commit func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if err := store.Append(t.Context(), tx, messages); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// wantSame compares without order: lanes that stand apart are read one after the other.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
