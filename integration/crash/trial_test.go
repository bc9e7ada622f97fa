package crash

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// trial is one topic under load and the members that read it.
type trial struct {
	t       testing.TB
	random  *rand.Rand // of the test's goroutine
	orders  orders     // what every member is told, before its own part
	pool    *pgxpool.Pool
	backlog int

	producer *producer
	load     sync.WaitGroup
	ended    atomic.Bool

	mu      sync.Mutex
	members []*process
	faults  map[string]int
}

// newTrial makes the tables and the topic. The database's URL and the broker are the checker's way, without a proxy.
// backlog is how many messages may wait for their effect before the producer pauses.
func newTrial(t testing.TB, database, broker string, backlog int) *trial {
	t.Helper()
	seed := seed(t)
	tr := &trial{
		t: t, random: newRandom(seed), backlog: backlog, faults: map[string]int{},
		orders: orders{
			Database: database, Broker: broker,
			Topic: stack.Topic(t, broker, partitions), Consumer: "billing",
		},
	}
	tr.orders.Group = tr.orders.Topic + ".billing"

	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	if tr.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.pool.Close)
	if err := postgres.New(tr.pool).Migrate(t.Context()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	if _, err := tr.pool.Exec(t.Context(), effectTables); err != nil {
		t.Fatalf("make the tables of effects: %v", err)
	}
	tr.producer = newProducer(t, broker, tr.orders.Topic, seed+1)
	return tr
}

// seed is ONCEWARD_CRASH_SEED, or a new one, mixed with the test's name.
func seed(t testing.TB) uint64 {
	t.Helper()
	base := rand.Uint64() >> 1
	if text := os.Getenv("ONCEWARD_CRASH_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("ONCEWARD_CRASH_SEED is %q: set it to a number", text)
		}
		base = given
	}
	t.Logf("to repeat: ONCEWARD_CRASH_SEED=%d", base)
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name()))
	return base ^ name.Sum64()
}

func newRandom(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0))
}

// pause draws the moment of a fault, or its length.
func (tr *trial) pause(most time.Duration) {
	pause(tr.t.Context(), time.Duration(tr.random.Int64N(int64(most))))
}

// begin starts the producer, which goes on until finish.
func (tr *trial) begin() {
	tr.load.Go(func() {
		effects := 0
		tr.producer.run(context.Background(), func(sent int) bool {
			for !tr.ended.Load() && sent-effects >= tr.backlog {
				pause(context.Background(), 20*time.Millisecond)
				tr.count(&effects)
			}
			return !tr.ended.Load()
		})
	})
}

// count updates the number of effects, if the database answers.
func (tr *trial) count(effects *int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = tr.pool.QueryRow(ctx, `SELECT coalesce(sum(effects), 0) FROM tally WHERE consumer = $1`, tr.orders.Consumer).Scan(effects)
}

// member starts one; change, which may be nil, gives it orders of its own.
func (tr *trial) member(change func(*orders)) *process {
	tr.t.Helper()
	o := tr.orders
	if change != nil {
		change(&o)
	}
	tr.mu.Lock()
	name := fmt.Sprintf("%d (%s)", len(tr.members)+1, o.Handling)
	tr.mu.Unlock()
	p := start(tr.t, name, o)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.members = append(tr.members, p)
	return p
}

func (tr *trial) fault(kind string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.faults[kind]++
}

// finish stops the load, lets the members drain the topic, asks those that are left to leave and checks the effects.
func (tr *trial) finish() {
	tr.t.Helper()
	tr.ended.Store(true)
	tr.load.Wait()
	tr.drain(tr.orders.Group)
	for _, p := range tr.living() {
		p.Stop()
	}
	tr.check(tr.orders.Consumer, tr.orders.Group)
	tr.summary()
}

func (tr *trial) living() []*process {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var living []*process
	for _, p := range tr.members {
		if p.Alive() {
			living = append(living, p)
		}
	}
	return living
}

func (tr *trial) summary() {
	of := func(kind inbox.EventKind) int { return total(tr.members, kind) }
	tr.t.Logf("members %d, faults %v; messages %d and %d copies; joined %d times; effects reported %d, duplicates %d; failures %d, outages %d, commits dropped %d",
		len(tr.members), tr.faults, tr.producer.messages, tr.producer.duplicates, of(kafka.EventJoined),
		of(inbox.EventProcessed), of(inbox.EventDuplicate),
		of(inbox.EventFailed), of(inbox.EventOutage), of(kafka.EventCommitDropped))
}
