package outbox

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/integration/proxy"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// loadUntil has writers work until the returned function is called, which waits for them.
func loadUntil(t testing.TB, w *writers, random *rand.Rand) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	random = newRandom(random.Uint64())
	var load sync.WaitGroup
	load.Go(func() {
		for ctx.Err() == nil {
			w.run(context.WithoutCancel(ctx), random, 2, 3)
			pause(ctx, 5*time.Millisecond)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		load.Wait()
	})
}

// notices counts what a relay reports.
type notices struct {
	mu     sync.Mutex
	counts map[outbox.NoticeKind]int
	errs   map[outbox.NoticeKind]error // the last one
}

func newNotices() *notices {
	return &notices{counts: map[outbox.NoticeKind]int{}, errs: map[outbox.NoticeKind]error{}}
}

func (n *notices) take(notice outbox.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[notice.Kind] += notice.Count
	if notice.Err != nil {
		n.errs[notice.Kind] = notice.Err
	}
}

func (n *notices) of(kind outbox.NoticeKind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts[kind]
}

func (n *notices) last(kind outbox.NoticeKind) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.errs[kind]
}

// wantNoAttempts holds after an outage: nothing was tried in vain, and nothing is set aside.
func wantNoAttempts(t testing.TB, pool *pgxpool.Pool, n *notices, relay string) {
	t.Helper()
	for _, kind := range []outbox.NoticeKind{outbox.NoticeRetrying, outbox.NoticeDead, outbox.NoticeBehind} {
		if count := n.of(kind); count > 0 {
			t.Errorf("%d events are %s after an outage: %v", count, kind, n.last(kind))
		}
	}
	asides, err := postgres.New(pool).SetAside(t.Context(), relay, outbox.Filter{Limit: 10})
	if err != nil || len(asides) > 0 {
		t.Errorf("set aside after an outage: %+v, %v", asides, err)
	}
}

// TestBrokerRestartSpendsNoAttempts ends the broker in both ways while events are published.
func TestBrokerRestartSpendsNoAttempts(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	broker := stack.NewKafka(t)
	topic := stack.Topic(t, broker.Addr(), partitions)
	url := stack.Postgres(t)
	admin := newDatabase(t, url)
	w := newWriters(t, url)
	w.topic = topic
	n := newNotices()
	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{broker.Addr()}, Logger: newLogger(t)})
	t.Cleanup(func() { _ = publisher.Close() })
	config := relayConfig(t, random)
	config.OnNotice, config.BackoffMax, config.MaxAttempts, config.Batch = n.take, time.Second, 2, 200
	relay := startRelay(postgres.New(newPool(t, url)), publisher, config)

	end := loadUntil(t, w, random)
	defer end()
	for _, restart := range []struct {
		kind string
		end  func()
	}{{"kill", broker.Kill}, {"stop", broker.Stop}} {
		before := n.of(outbox.NoticePublished)
		eventually(t, "events before the "+restart.kind, func() bool { return n.of(outbox.NoticePublished) > before+50 })
		paused := n.of(outbox.NoticePaused)
		restart.end()
		eventually(t, "a pause after the "+restart.kind, func() bool { return n.of(outbox.NoticePaused) > paused })
		broker.Start()
		back, before := time.Now(), n.of(outbox.NoticePublished)
		eventually(t, "events after the "+restart.kind, func() bool { return n.of(outbox.NoticePublished) > before })
		t.Logf("%s: the first events came %v after the broker was back", restart.kind, time.Since(back).Round(time.Millisecond))
	}
	end()
	awaitPublished(t, postgres.New(admin), config.Name)
	relay.stop(t)
	ledger := readLedger(t, admin)
	v := judge(ledger, idsOf(readTopic(t, broker.Addr(), topic, partitions)))
	wantInOrder(t, "on the topic", v)
	wantNoAttempts(t, admin, n, config.Name)
	t.Log(v)
}

// TestDatabaseRestartSpendsNoAttempts ends the database in both ways while events are written and published.
func TestDatabaseRestartSpendsNoAttempts(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	server := stack.NewPostgres(t, "max_prepared_transactions=60")
	url := server.Database()
	admin := newDatabase(t, url)
	n := newNotices()
	published := newRecorder(random.Uint64())
	config := relayConfig(t, random)
	config.OnNotice, config.Lease, config.BackoffMax, config.Logger = n.take, 2*time.Second, 500*time.Millisecond, quiet
	store := postgres.New(newPool(t, url))
	relays := []*instance{startRelay(store, published, config), startRelay(store, published, config)}

	for _, restart := range []struct {
		kind string
		end  func()
	}{{"kill", server.Kill}, {"stop", server.Stop}} {
		// Writers of their own for each life of the server: those that it ends fail, as their callers would.
		w := newWriters(t, url)
		w.outages = true
		ctx, cancel := context.WithCancel(t.Context())
		var load, second sync.WaitGroup
		for range 3 {
			random := newRandom(random.Uint64())
			load.Go(func() {
				for ctx.Err() == nil {
					if err := w.transaction(ctx, random, &second); err != nil {
						pause(ctx, 10*time.Millisecond)
					}
				}
			})
		}
		before := published.journal.distinct()
		eventually(t, "events before the "+restart.kind, func() bool { return published.journal.distinct() > before+100 })
		outages := n.of(outbox.NoticeOutage)
		restart.end()
		eventually(t, "the outage", func() bool { return n.of(outbox.NoticeOutage) > outages })
		cancel()
		load.Wait()
		second.Wait()
		server.Start()
		before = published.journal.distinct()
		back := time.Now()
		// What was prepared is ended by whoever finds it.
		endPrepared(t, admin)
		again := newWriters(t, url)
		again.run(t.Context(), newRandom(random.Uint64()), 2, 5)
		eventually(t, "events after the "+restart.kind, func() bool { return published.journal.distinct() > before })
		t.Logf("%s: the first events came %v after the database was back", restart.kind, time.Since(back).Round(time.Millisecond))
	}
	ledger := readLedger(t, admin)
	published.journal.await(t, "everything that was committed", ledger)
	for _, relay := range relays {
		relay.stop(t)
	}
	v := judge(ledger, published.journal.published())
	wantInOrder(t, "published", v)
	wantNoAttempts(t, admin, n, config.Name)
	t.Log(v)
}

// endPrepared rolls back the prepared transactions that a dead writer left in this database.
func endPrepared(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "the end of the prepared transactions", func() bool {
		rows, err := pool.Query(t.Context(), `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
		if err != nil {
			return false // connections of the dead server
		}
		gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, gid := range gids {
			_, _ = pool.Exec(t.Context(), `ROLLBACK PREPARED '`+gid+`'`) // or its writer just did
		}
		return err == nil && len(gids) == 0
	})
}

// settleLink arms a proxy at some settlements.
type settleLink struct {
	outbox.RelayStore

	proxy *proxy.Proxy

	mu     sync.Mutex
	random *rand.Rand
	faults []proxy.Fault // to come

	failed atomic.Int64
}

func (s *settleLink) Settle(ctx context.Context, settlement outbox.Settlement) (outbox.Settled, error) {
	s.mu.Lock()
	if len(s.faults) > 0 && s.random.IntN(3) == 0 && !s.proxy.Waiting() {
		s.proxy.Lie(s.faults[0], s.random.IntN(3))
		s.faults = s.faults[1:]
	}
	s.mu.Unlock()
	settled, err := s.RelayStore.Settle(ctx, settlement)
	if err != nil {
		s.failed.Add(1)
	}
	return settled, err
}

// TestConnectionsCutAroundSettleCauseCopiesOnly cuts before and after each message of a settlement, when its outcome is unknown,
// and lets the connection fall silent.
func TestConnectionsCutAroundSettleCauseCopiesOnly(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	url := stack.Postgres(t)
	admin := newDatabase(t, url)
	between, through := proxy.New(t, url, func([]byte) bool { return true })
	w := newWriters(t, url)
	n := newNotices()
	published := newRecorder(random.Uint64())
	config := relayConfig(t, random)
	config.OnNotice, config.Lease, config.BackoffMax, config.Logger = n.take, 2*time.Second, 200*time.Millisecond, quiet
	link := &settleLink{
		RelayStore: postgres.New(newPool(t, through), postgres.WithCommitDeadline(time.Second)), proxy: between, random: newRandom(random.Uint64()),
		faults: []proxy.Fault{
			proxy.CutBefore, proxy.CutAfter, proxy.CutBefore, proxy.CutAfter, proxy.CutAfter, proxy.CutBefore, proxy.FallSilent,
			proxy.CutAfter, proxy.CutBefore, proxy.CutAfter, proxy.CutAfter, proxy.CutBefore, proxy.FallSilent,
		},
	}
	all := len(link.faults)
	relay := startRelay(link, published, config)
	end := loadUntil(t, w, random)
	defer end()
	eventually(t, "all faults", func() bool { return between.Strikes() == all })
	end()
	ledger := readLedger(t, admin)
	published.journal.await(t, "everything that was committed", ledger)
	relay.stop(t)
	v := judge(ledger, published.journal.published())
	wantInOrder(t, "published", v)
	wantNoAttempts(t, admin, n, config.Name)
	if link.failed.Load() == 0 {
		t.Error("no settlement failed, so nothing was proved")
	}
	t.Logf("%d settlements failed: %v", link.failed.Load(), v)
}

// TestRelayStoppedCleanlyLeavesNoCopies stops and starts a relay again and again under load, each time within its deadline, and
// each time the next one owns the lanes at once.
func TestRelayStoppedCleanlyLeavesNoCopies(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	url, broker := stack.Postgres(t), stack.Kafka(t).Addr
	admin := newDatabase(t, url)
	topic := stack.Topic(t, broker, partitions)
	w := newWriters(t, url)
	w.topic = topic
	n := newNotices()
	config := relayConfig(t, random)
	config.OnNotice = n.take
	store := postgres.New(newPool(t, url))
	end := loadUntil(t, w, random)
	defer end()
	for range 12 {
		publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{broker}, Logger: newLogger(t)})
		before := n.of(outbox.NoticePublished)
		relay := startRelay(store, publisher, config)
		// With lanes that wait for a lease of 30 s to end, this would not come about.
		begun := time.Now()
		eventually(t, "the next events", func() bool { return n.of(outbox.NoticePublished) > before })
		if took := time.Since(begun); took > config.Lease/2 {
			t.Errorf("the first events came after %v: lanes were not free", took)
		}
		pause(t.Context(), time.Duration(random.Int64N(int64(100*time.Millisecond)))) // any moment
		stopping := time.Now()
		relay.stop(t)
		if took := time.Since(stopping); took > config.StopTimeout {
			t.Errorf("the stop took %v, more than StopTimeout", took)
		}
		if err := publisher.Close(); err != nil {
			t.Error(err)
		}
	}
	end()
	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{broker}, Logger: newLogger(t)})
	t.Cleanup(func() { _ = publisher.Close() })
	relay := startRelay(store, publisher, config)
	awaitPublished(t, postgres.New(admin), config.Name)
	relay.stop(t)
	v := judge(readLedger(t, admin), idsOf(readTopic(t, broker, topic, partitions)))
	wantNoCopies(t, "on the topic", v)
	t.Log(v)
}

// TestStopDoesNotWaitForPublisherForEver: a publisher that never answers holds a stop up until StopTimeout, not longer.
func TestStopDoesNotWaitForPublisherForEver(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	newDatabase(t, url)
	w := newWriters(t, url)
	w.run(t.Context(), newRandom(seed(t)), 1, 5)
	called := make(chan struct{}, 100)
	stuck := publisherFunc(func(ctx context.Context, events []outbox.Event) []error {
		called <- struct{}{}
		<-ctx.Done()
		results := make([]error, len(events))
		for i := range results {
			results[i] = outbox.ErrUnavailable
		}
		return results
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	relay := outbox.NewRelay(postgres.New(newPool(t, url)), stuck, outbox.RelayConfig{Name: "events", StopTimeout: time.Second, Logger: newLogger(t)})
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	<-called
	cancel()
	begun := time.Now()
	err := <-ended
	if took := time.Since(begun); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("the stop took %v, want about StopTimeout, a second", took)
	}
	t.Logf("Run returned %v", err)
}

type publisherFunc func(ctx context.Context, events []outbox.Event) []error

func (f publisherFunc) Publish(ctx context.Context, events []outbox.Event) []error {
	return f(ctx, events)
}
