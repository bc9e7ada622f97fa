package postgres_test

import (
	"testing"
	"time"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestPositionsDoNotWaitForTheDiskAndDeadLettersDo on a server that flushes by itself seldom: what a settlement has waited
// for is on the disk when it returns.
func TestPositionsDoNotWaitForTheDiskAndDeadLettersDo(t *testing.T) {
	t.Parallel()
	url := stack.NewPostgres(t, "fsync=on", "wal_writer_delay=10s", "autovacuum=off").Database()
	pool := newPool(t, url)
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	registration := outbox.Registration{Relay: "events", Lanes: 1, Policy: outbox.BlockLane, Retention: time.Hour}
	if err := store.Register(t.Context(), registration); err != nil {
		t.Fatal(err)
	}
	lease, err := store.Lease(t.Context(), "events", "one", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	settle := func(last int64, aside ...outbox.Aside) (flushed bool) {
		position := lease.Lanes[0].Position
		position.Floor = last
		owned := outbox.OwnedLane{Lane: 0, Epoch: lease.Lanes[0].Epoch, Position: position}
		settled, err := store.Settle(t.Context(), outbox.Settlement{
			Relay: "events", Instance: "one", Lanes: []outbox.LaneProgress{{OwnedLane: owned}}, Aside: aside,
		})
		if err != nil || len(settled.Lost) > 0 {
			t.Fatalf("settling: %v, lost %v", err, settled.Lost)
		}
		if err := pool.QueryRow(t.Context(), `SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()`).Scan(&flushed); err != nil {
			t.Fatal(err)
		}
		return flushed
	}
	if settle(1, outbox.Aside{Number: 1, State: outbox.Dead, Error: "refused"}); !settle(2, outbox.Aside{Number: 2, State: outbox.Dead}) {
		t.Error("a dead letter that was saved is not on the disk")
	}
	// Any commit of the server's own in between would flush it along.
	waited := 0
	for n := range int64(5) {
		if settle(3 + n) {
			waited++
		}
	}
	if waited == 5 {
		t.Error("each position that was saved was flushed to the disk")
	}
}
