package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/store/postgres"
)

// Operators lock the relay and then its lanes. Whoever changes both in another order would be in a deadlock with them.
func TestLeasesLockTheRelayBeforeItsLanes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(ctx context.Context, store *postgres.Store) error{
		"Leave": func(ctx context.Context, store *postgres.Store) error { return store.Leave(ctx, "r", "a") },
		"Lease": func(ctx context.Context, store *postgres.Store) error {
			_, err := store.Lease(ctx, "r", "b", time.Hour)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, admin := newDatabase(t)
			store := postgres.New(newPool(t, url))
			follow(t, store, registrationOf("r"), "a")
			ctx := t.Context()
			// A minute has passed, and the lease is over.
			for _, statement := range []string{
				`UPDATE onceward.relay SET seen_at = seen_at - interval '1 hour'`,
				`UPDATE onceward.relay_instance SET lease_until = lease_until - interval '2 hours'`,
			} {
				if _, err := admin.Exec(ctx, statement); err != nil {
					t.Fatal(err)
				}
			}
			operator, err := admin.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if err := operator.QueryRow(ctx, `SELECT pg_backend_pid() FROM onceward.relay WHERE name = 'r' FOR UPDATE`).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			changed := make(chan error, 1)
			go func() { changed <- change(ctx, store) }()
			for waiting := false; !waiting; {
				err := admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`, pid).Scan(&waiting)
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := operator.Exec(ctx, `SELECT FROM onceward.relay_lane WHERE relay = 'r' ORDER BY lane FOR UPDATE`); err != nil {
				t.Errorf("operator: %v", err)
			}
			if err := operator.Commit(ctx); err != nil {
				t.Error(err)
			}
			if err := <-changed; err != nil {
				t.Error(err)
			}
		})
	}
}
