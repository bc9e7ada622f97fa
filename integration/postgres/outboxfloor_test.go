package postgres_test

import (
	"testing"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// TestYoungestTransactionIsNotLostBelowAFloor: no other one ends after it has begun, so
// that no snapshot tells of it.
func TestYoungestTransactionIsNotLostBelowAFloor(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t, "autovacuum=off")
	pool := newPool(t, server.Database())
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := follow(t, store, registrationOf("events"), "a")
	for range 5 {
		youngest := eventsOf("orders", "youngest", 3)
		commit := publish(t, pool, store, youngest...)
		for range 4 {
			f.read() // Each sees the last number, and opens a window.
		}
		commit()
		wantSame(t, "after its commit", f.all(), idsOf(youngest))
	}
}

// TestEventWhoseTransactionSleepsInATriggerIsNotLostBelowAFloor: it has its number, and the
// relay finds floors meanwhile.
func TestEventWhoseTransactionSleepsInATriggerIsNotLostBelowAFloor(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	execute(t, admin, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_lock_shared(7); PERFORM pg_advisory_unlock_shared(7); RETURN NEW; END $$;
		CREATE TRIGGER wait BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION wait()`)
	f := follow(t, store, registrationOf("events"), "a")
	conn, err := admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock(7)`); err != nil {
		t.Fatal(err)
	}
	inserted := make(chan error, 1)
	go func() {
		_, err := admin.Exec(t.Context(), `INSERT INTO onceward.outbox (message_id, topic) VALUES ('slow', 'orders')`)
		inserted <- err
	}()
	eventually(t, "the event's number", func() bool {
		return queryRow[bool](t, admin, `SELECT is_called FROM onceward.outbox_number`)
	})
	for range 4 {
		f.read()
		f.save()
	}
	if floor := f.owned[0].Position.Floor; floor != 1 {
		t.Fatalf("the floor is %d: the test is not what it means to be", floor)
	}
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock(7)`); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the insert", inserted); err != nil {
		t.Fatal(err)
	}
	wantSame(t, "then", f.all(), []string{"slow"})
}
