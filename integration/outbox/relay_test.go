package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// relayConfig is that of the relays under test: small batches, so that there are many.
func relayConfig(t testing.TB, random *rand.Rand) outbox.RelayConfig {
	return outbox.RelayConfig{
		Name: "events", Lanes: 1 + random.IntN(16), Batch: 1 + random.IntN(50), Lease: 30 * time.Second, Poll: 20 * time.Millisecond,
		StopTimeout: 5 * time.Second, Logger: newLogger(t),
	}
}

// TestRelaysPublishEveryCommittedEventOnceInTheOrderOfItsKey runs whole relays against the writers: three instances of one relay for all topics,
// and one of another for some. Instances leave and join; nobody dies.
func TestRelaysPublishEveryCommittedEventOnceInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	for n := range schedules {
		t.Run(fmt.Sprintf("schedule %d", n+1), func(t *testing.T) {
			t.Parallel()
			server := newCluster(t)
			random := newRandom(seed(t))
			url := server.Database()
			admin := newDatabase(t, url)
			execute(t, admin, sleepyTrigger)
			crowd := crowds[n%len(crowds)]
			if crowd.elsewhere {
				stop := elsewhere(t, server.Database(), random)
				defer stop()
			}
			w := newWriters(t, url)
			commit := w.hold()

			all, some := newRecorder(random.Uint64()), newRecorder(random.Uint64())
			config := relayConfig(t, random)
			filtered := config
			filtered.Name, filtered.Topics = "orders", []string{"orders*"}
			store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 12 }))
			others := []*instance{startRelay(store, all, config), startRelay(store, some, filtered)}
			comers := startRelay(store, all, config)
			var load sync.WaitGroup
			load.Go(func() { w.run(t.Context(), random, crowd.writers, crowd.transactions) })
			for range 4 {
				before := all.journal.distinct()
				eventually(t, "some more events", func() bool { return all.journal.distinct() > before })
				comers.stop(t)
				comers = startRelay(store, all, config)
			}
			load.Wait()

			all.journal.await(t, "everything but what a transaction holds back", readLedger(t, admin))
			if all.journal.has(eventID(heldKey, 1)) {
				t.Error("an event was published whose transaction is open")
			}
			commit()
			ledger := readLedger(t, admin)
			var orders []entry
			for _, e := range ledger {
				if topicOf(e.topicKey()) != "payments" {
					orders = append(orders, e)
				}
			}
			all.journal.await(t, "what was held back", ledger)
			some.journal.await(t, "the topics of the other relay", orders)
			for _, i := range append(others, comers) {
				i.stop(t)
			}
			wantNoCopies(t, "all topics", judge(ledger, all.journal.published()))
			wantNoCopies(t, "some topics", judge(orders, some.journal.published()))
			t.Logf("%d lanes, batches of %d: %v", config.Lanes, config.Batch, judge(ledger, all.journal.published()))
		})
	}
}

// topicKey is what the topic of an event was chosen by: its key, or else its id.
func (e entry) topicKey() string {
	if e.key == "" {
		return e.id
	}
	return e.key
}

// blows is how many instances die or freeze in a schedule.
const blows = 9

// TestDyingAndFrozenRelaysCauseCopiesOnly strikes three instances at random steps: between publish and settle, before and
// after each call of the store, between two events of a batch. The dead are replaced; the frozen wake up when their
// lease is over and others have published on.
func TestDyingAndFrozenRelaysCauseCopiesOnly(t *testing.T) {
	t.Parallel()
	for n := range schedules {
		t.Run(fmt.Sprintf("schedule %d", n+1), func(t *testing.T) {
			t.Parallel()
			server := newCluster(t)
			random := newRandom(seed(t))
			url := server.Database()
			admin := newDatabase(t, url)
			w := newWriters(t, url)
			published := newRecorder(random.Uint64())
			config := relayConfig(t, random)
			config.Lease, config.StopTimeout = time.Second, time.Second
			config.Logger = quiet // outages are what is made here
			store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 16 }))

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var load sync.WaitGroup
			loading := newRandom(random.Uint64())
			load.Go(func() {
				for ctx.Err() == nil {
					w.run(context.WithoutCancel(ctx), loading, 4, 2)
				}
			})
			victims := victims{t: t, config: config, store: store, published: published}
			var all sync.WaitGroup
			for range 3 {
				random := newRandom(random.Uint64())
				all.Go(func() { victims.suffer(random, blows/3) })
			}
			all.Wait()
			cancel()
			load.Wait()
			survivor := startRelay(store, published, config)
			ledger := readLedger(t, admin)
			published.journal.await(t, "everything that was committed", ledger)
			survivor.stop(t)
			v := judge(ledger, published.journal.published())
			wantInOrder(t, "published", v)
			t.Logf("%d lanes, batches of %d, %d died, %d froze: %v", config.Lanes, config.Batch, victims.died.Load(), victims.froze.Load(), v)
		})
	}
}

// victims are instances that are struck one after the other.
type victims struct {
	t           testing.TB
	config      outbox.RelayConfig
	store       outbox.RelayStore
	published   *recorder
	died, froze atomic.Int64
}

func (v *victims) start() (*life, *instance) {
	l := newLife(v.store, v.published)
	return l, startRelay(l, l, v.config)
}

// suffer strikes an instance n times and ends it cleanly then.
func (v *victims) suffer(random *rand.Rand, n int) {
	l, i := v.start()
	for blow := range n {
		struck := make(chan struct{})
		steps := random.IntN(60)
		if blow%2 == 0 {
			l.plan(steps, func() { l.die(); close(struck) })
			if !v.await(struck) {
				return
			}
			i.cancel()
			_ = i.end(v.t) // it could not leave
			v.died.Add(1)
			l, i = v.start()
			continue
		}
		thaws := make(chan func(), 1)
		l.plan(steps, func() { thaws <- l.freeze(); close(struck) })
		if !v.await(struck) {
			return
		}
		thaw := <-thaws
		// Longer than the lease, or shorter: the length is the fault.
		pause(context.Background(), v.config.Lease/2+time.Duration(random.Int64N(int64(v.config.Lease))))
		thaw()
		v.froze.Add(1)
	}
	i.stop(v.t)
}

func (v *victims) await(struck chan struct{}) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-struck:
		return true
	case <-timer.C:
		v.t.Errorf("an instance came to no step within %v", patience)
		return false
	}
}
