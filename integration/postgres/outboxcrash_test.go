package postgres_test

import (
	"testing"
	"time"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestNothingKnownFromBeforeACrashIsSavedAfterIt: a server that lost its last commits
// gives the numbers of their transactions to others.
func TestNothingKnownFromBeforeACrashIsSavedAfterIt(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t, "synchronous_commit=off", "wal_writer_delay=10s")
	pool := newPool(t, server.Database())
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, pool, store, eventsOf("orders", "before", 10)...)()
	f := follow(t, store, registrationOf("events"), "a")
	wantSame(t, "before", f.all(), idsOf(eventsOf("orders", "before", 10)))
	execute(t, pool, `CHECKPOINT`)
	publish(t, pool, store, eventsOf("orders", "lost", 50)...)()
	if got := len(f.read().Events); got != 50 {
		t.Fatalf("%d events", got)
	}
	server.Kill()
	server.Start()
	// Writers go on at once, in the place of what was lost.
	for i := range 20 {
		eventually(t, "a connection", func() bool { return pool.Ping(t.Context()) == nil })
		publish(t, pool, store, eventsOf("orders", string(rune('a'+i)), 3)...)()
	}
	s := outbox.Settlement{Relay: "events", Instance: "a"}
	for _, l := range f.owned {
		s.Lanes = append(s.Lanes, outbox.LaneProgress{OwnedLane: l})
	}
	settled, err := store.Settle(t.Context(), s)
	if err != nil || len(settled.Lost) != 4 {
		t.Fatalf("lost %v, error %v: a position from before the crash was saved", settled.Lost, err)
	}
	before := f.owned
	f.take()
	for i, l := range f.owned {
		if l.Epoch <= before[i].Epoch {
			t.Errorf("lane %d is taken without another epoch", l.Lane)
		}
	}
	got := map[string]int{}
	for _, id := range f.all() {
		got[id]++
	}
	for i := range 20 {
		for _, id := range idsOf(eventsOf("orders", string(rune('a'+i)), 3)) {
			if got[id] != 1 {
				t.Errorf("%s was published %d times after the crash", id, got[id])
			}
		}
	}
}

// TestForgottenInstanceKeepsNoLaneWithItsOldEpoch, not even those that are more than its share.
func TestForgottenInstanceKeepsNoLaneWithItsOldEpoch(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url))
	f := follow(t, store, registrationOf("events"), "a")
	old := map[int]int64{}
	for _, l := range f.owned {
		old[l.Lane] = l.Epoch
	}
	execute(t, admin, `TRUNCATE onceward.relay_instance`) // What a crash does to a table that is not logged.
	// Another instance comes first, so that the share is smaller than what it owned.
	execute(t, admin, `INSERT INTO onceward.relay_instance VALUES ('events', 'b', now(), now() + interval '1 hour')`)
	for call := range 2 {
		f.take()
		if len(f.owned) != 2 {
			t.Fatalf("it owns %d lanes", len(f.owned))
		}
		for _, l := range f.owned {
			if l.Epoch <= old[l.Lane] {
				t.Errorf("in call %d lane %d is owned with the epoch from before", call, l.Lane)
			}
		}
	}
}

// TestLeaseOutlivesAnOrderlyRestart of the server, which loses nothing.
func TestLeaseOutlivesAnOrderlyRestart(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t)
	pool := newPool(t, server.Database())
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := follow(t, store, registrationOf("events"), "a")
	server.Stop()
	server.Start()
	eventually(t, "a connection", func() bool { return pool.Ping(t.Context()) == nil })
	before := f.owned
	f.take()
	for i, l := range f.owned {
		if l.Epoch != before[i].Epoch {
			t.Errorf("lane %d has epoch %d, had %d", l.Lane, l.Epoch, before[i].Epoch)
		}
	}
	f.save()
}

func TestTransactionsThatHoldEventsAreNamed(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	commit := publish(t, admin, store, eventsOf("orders", "open", 1)...)
	other := newPool(t, stack.Postgres(t))
	execute(t, other, `BEGIN; CREATE TABLE a (); PREPARE TRANSACTION 'onceward-holder-test'`)
	t.Cleanup(func() { execute(t, other, `ROLLBACK PREPARED 'onceward-holder-test'`) })
	holders, err := store.Holders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open, prepared := false, false
	for _, h := range holders {
		open = open || h.PID != 0 && h.Database == admin.Config().ConnConfig.Database && h.State == "idle in transaction"
		prepared = prepared || h.PID == 0 && h.GID == "onceward-holder-test" && h.Database == other.Config().ConnConfig.Database && h.State == "prepared"
		if time.Since(h.Since).Abs() > time.Hour {
			t.Errorf("since %v: %+v", h.Since, h)
		}
	}
	if !open || !prepared {
		t.Errorf("got %+v", holders)
	}
	commit()
}
