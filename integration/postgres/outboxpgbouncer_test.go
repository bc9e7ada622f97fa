package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestOutboxThroughPgBouncerInEachSafeMode publishes with eight clients and follows with
// two relays, on three server connections.
func TestOutboxThroughPgBouncerInEachSafeMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			t.Run("pgx", func(t *testing.T) {
				url, _ := newDatabase(t)
				url = withSetting(stack.PgBouncer(t, url, fewServers), "default_query_exec_mode="+mode)
				pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 10 })
				store := postgres.New(pool)
				outboxCrowd(t, store, func(ctx context.Context, work func(tx pgx.Tx) error) error {
					return pgx.BeginFunc(ctx, pool, work)
				})
				publish(t, pool, store, eventsOf("orders", "a", 5)...)()
				if err := everythingOfRelays(t, store); err != nil {
					t.Error(err)
				}
			})
			t.Run("sql", func(t *testing.T) {
				url, _ := newDatabase(t)
				db := newSQLPool(t, withSetting(stack.PgBouncer(t, url, fewServers), "default_query_exec_mode="+mode))
				db.SetMaxOpenConns(10)
				db.SetMaxIdleConns(10)
				outboxCrowd(t, postgres.NewSQL(db), func(ctx context.Context, work func(tx *sql.Tx) error) error {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					defer func() { _ = tx.Rollback() }()
					if err := work(tx); err != nil {
						return err
					}
					return tx.Commit()
				})
			})
		})
	}
}

// outboxCrowd publishes from eight clients, and wants everything once from two relays, one
// of which takes some of it.
func outboxCrowd[Tx any](t *testing.T, store outbox.Store[Tx], inTx func(ctx context.Context, work func(tx Tx) error) error) {
	t.Helper()
	const clients, each = 8, 20
	all, some := follow(t, store, registrationOf("all"), "a"), follow(t, store, registrationOf("some", "topic-0", "topic-1*"), "a")
	var want, wantSome []string
	for client := range clients {
		for i := range each {
			id := fmt.Sprintf("%d-%d", client, i)
			want = append(want, id+"-0", id+"-1", id+"-2")
			if client < 2 {
				wantSome = append(wantSome, id+"-0", id+"-1", id+"-2")
			}
		}
	}
	var writers sync.WaitGroup
	errs := make(chan error, clients)
	for client := range clients {
		writers.Go(func() {
			errs <- func() error {
				for i := range each {
					messages := eventsOf(fmt.Sprintf("topic-%d", client), fmt.Sprintf("%d-%d", client, i), 3)
					err := inTx(t.Context(), func(tx Tx) error {
						if err := store.Append(t.Context(), tx, messages[:1]); err != nil {
							return err
						}
						return store.Append(t.Context(), tx, messages[1:])
					})
					if err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	var got, gotSome []string
	eventually(t, "the last event", func() bool {
		got, gotSome = append(got, all.all()...), append(gotSome, some.all()...)
		return len(got) >= len(want) && len(gotSome) >= len(wantSome)
	})
	writers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	got, gotSome = append(got, all.all()...), append(gotSome, some.all()...)
	slices.Sort(got)
	wantSame(t, "all", got, want)
	wantSame(t, "some", gotSome, wantSome)
}

// TestRelayThatPgBouncerBreaksIsToldTheCure in pgx's default mode.
func TestRelayThatPgBouncerBreaksIsToldTheCure(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	through := stack.PgBouncer(t, url, oneServer)
	client := newPool(t, withSetting(through, "default_query_exec_mode=exec"), one)
	store := postgres.New(newPool(t, through, one))
	f := follow(t, store, registrationOf("events"), "a")
	f.read()
	execute(t, client, `DEALLOCATE ALL`)
	_, err := store.Read(t.Context(), outbox.ReadRequest{Relay: "events", Lanes: []int{0, 1, 2, 3}, AllLanes: 4, Limit: 100, MaxBytes: 1 << 20})
	wantNamed(t, err, "26000")
}
