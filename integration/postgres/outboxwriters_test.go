package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestEveryCommittedEventIsReadOnceAndInTheOrderOfItsKey while writers take the numbers
// of their transactions early and late, sleep in a trigger, roll back and stay open; other
// programs use up numbers of transactions; and two instances hand lanes to each other.
func TestEveryCommittedEventIsReadOnceAndInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	const writing, keys = 4 * time.Second, 12
	url, admin := newDatabase(t)
	execute(t, admin, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF random() < 0.2 THEN PERFORM pg_sleep(random() * 0.004); END IF; RETURN NEW; END $$;
		CREATE TRIGGER dawdle BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 24 })
	store := postgres.New(pool)

	var mu sync.Mutex
	committed := map[string][]string{} // by key, in the order of commits
	ctx, stop := context.WithTimeout(t.Context(), writing)
	defer stop()
	var writers sync.WaitGroup
	for writer := range 16 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key, id := fmt.Sprintf("key-%d", rand.IntN(keys)), fmt.Sprintf("%d-%d", writer, n)
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
					return write(tx, store, key, id, &mu, committed)
				})
				if err != nil && !errors.Is(err, errAborted) {
					t.Errorf("writer %d: %v", writer, err)
					return
				}
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			for ctx.Err() == nil {
				execute(t, admin, `SELECT pg_current_xact_id()`)
			}
		})
	}

	read := map[string][]string{}
	note := func(events []outbox.Event) {
		for _, e := range events {
			read[string(e.Key)] = append(read[string(e.Key)], e.ID)
		}
	}
	one, two := follow(t, store, registrationOf("events"), "one"), follow(t, postgres.New(newPool(t, url)), registrationOf("events"), "two")
	one.limit, two.limit = 40, 40
	total := func() (n int) {
		for _, ids := range read {
			n += len(ids)
		}
		return n
	}
	turn := func() {
		for _, f := range []*follower{one, two} {
			if len(f.owned) > 0 {
				note(f.read().Events)
			}
		}
		switch rand.IntN(8) {
		case 0:
			one.release()
			two.retake()
		case 1:
			two.release()
			one.retake()
		case 2:
			one.retake()
			two.retake()
		case 3, 4:
			one.save()
			two.save()
		}
	}
	for ctx.Err() == nil {
		turn()
	}
	writers.Wait()
	want := 0
	for _, ids := range committed {
		want += len(ids)
	}
	eventually(t, "the last event", func() bool {
		turn()
		return total() >= want
	})
	for range 50 {
		turn()
	}
	if want < 500 {
		t.Errorf("%d events were written: too few to prove anything", want)
	}
	for key, ids := range committed {
		got := read[key]
		for i := range max(len(ids), len(got)) {
			if i >= len(ids) || i >= len(got) || ids[i] != got[i] {
				t.Fatalf("%s: %d were read, %d committed; they differ from place %d on", key, len(got), len(ids), i)
			}
		}
	}
}

var errAborted = errors.New("aborted")

// write writes one or two events of a key, as a program might.
func write(tx pgx.Tx, store *postgres.Store, key, id string, mu *sync.Mutex, committed map[string][]string) error {
	ctx := context.Background()
	if rand.IntN(2) == 0 { // The number of the transaction before the lock of the key.
		if _, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, id); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext($1))`, key); err != nil {
		return err
	}
	first := outbox.Message{ID: id + "a", Topic: "orders", Key: []byte(key)}
	second := first
	second.ID = id + "b"
	if rand.IntN(4) == 0 { // A savepoint, rolled back.
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := errors.Join(store.Append(ctx, nested, []outbox.Message{first}), nested.Rollback(ctx)); err != nil {
			return err
		}
	}
	if err := store.Append(ctx, tx, []outbox.Message{first}); err != nil {
		return err
	}
	switch rand.IntN(10) {
	case 0:
		return errAborted
	case 1: // It stays open, with its key.
		timer := time.NewTimer(time.Duration(rand.IntN(300)) * time.Millisecond)
		defer timer.Stop()
		<-timer.C
	}
	if err := store.Append(ctx, tx, []outbox.Message{second}); err != nil {
		return err
	}
	// The lock is still held: this is the order of the key.
	mu.Lock()
	defer mu.Unlock()
	committed[key] = append(committed[key], first.ID, second.ID)
	return nil
}

// release gives up a lane, for whoever comes.
func (f *follower) release() {
	f.t.Helper()
	if len(f.owned) == 0 {
		return
	}
	settled, err := f.store.Settle(f.t.Context(), outbox.Settlement{
		Relay: f.relay.Relay, Instance: f.name, Lanes: []outbox.LaneProgress{{OwnedLane: f.owned[0], Release: true}},
	})
	if err != nil || len(settled.Lost) > 0 {
		f.t.Fatalf("lost %v, error %v", settled.Lost, err)
	}
	f.owned = f.owned[1:]
}

// retake takes free lanes, and goes on with its own where it stands.
func (f *follower) retake() {
	f.t.Helper()
	kept := f.owned
	f.take()
	for i := range f.owned {
		for _, l := range kept {
			if l.Lane == f.owned[i].Lane && l.Epoch == f.owned[i].Epoch {
				f.owned[i] = l
			}
		}
	}
}

// TestTriggerThatLetsNoRowPassSeesItOnce: what it does instead is done once.
func TestTriggerThatLetsNoRowPassSeesItOnce(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	execute(t, admin, `CREATE TABLE elsewhere (topic text)`)
	execute(t, admin, `CREATE FUNCTION divert() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.elsewhere VALUES (NEW.topic); RETURN NULL; END $$`)
	execute(t, admin, `CREATE TRIGGER divert BEFORE INSERT ON onceward.outbox FOR EACH ROW WHEN (NEW.topic = 'b') EXECUTE FUNCTION divert()`)
	store := postgres.New(admin)
	for _, topic := range []string{"a", "b", "b"} { // the first look at the log is over with the first
		err := pgx.BeginFunc(t.Context(), admin, func(tx pgx.Tx) error {
			return store.Append(t.Context(), tx, []outbox.Message{{ID: outbox.NewID(), Topic: topic}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := queryRow[int](t, admin, `SELECT count(*) FROM elsewhere`); n != 2 {
		t.Errorf("the trigger saw %d rows of 2", n)
	}
}
