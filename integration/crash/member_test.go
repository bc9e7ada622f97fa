package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// ordersVariable makes this test binary a member; it holds its orders.
const ordersVariable = "ONCEWARD_CRASH_ORDERS"

// orders is what a member is told to be and to do.
type orders struct {
	Database, Broker, Topic, Group, Consumer string

	Handling       handling
	KeyParallelism int

	// Death is where on the way to PostgreSQL the member kills itself. Zero: nowhere.
	Death death

	// Hold is the id of a message whose handler, its effect written, waits until the parent says "go". Empty: none.
	Hold string

	// SlowEvery makes the handler of every n-th number sleep for Slow the first time it is called here, deaf to its
	// context. Zero: never.
	SlowEvery int
	Slow      time.Duration
}

// handling is how a member calls its handler.
type handling string

const (
	oneByOne handling = "one by one"
	batched  handling = "batch"
	bulk     handling = "bulk"
)

var handlings = []handling{oneByOne, batched, bulk}

// Settings of every member, short so that a death is noticed within a second.
const (
	sessionTimeout    = time.Second
	rebalanceTimeout  = 3 * time.Second
	drainTimeout      = time.Second
	heartbeatInterval = 200 * time.Millisecond
	claimWait         = 2 * time.Second
	commitDeadline    = 2 * time.Second
	batchSize         = 100
)

// Lines a member writes beside the kinds of events.
const (
	lineHeld  inbox.EventKind = "held"
	lineSlept inbox.EventKind = "slept"
)

// Lines a member reads.
const (
	wordGo  = "go"
	wordCut = "cut" // break every connection to Kafka
)

// beMember is the whole life of a member and returns its exit status: 0 after a clean drain.
func beMember(text string) int {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil { //nolint:musttag // both ends are this program
		fmt.Fprintln(os.Stderr, "orders:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	m := &member{orders: o, released: make(chan struct{})}
	go m.listen()
	if err := m.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		return 1
	}
	return 0
}

type member struct {
	orders

	printing sync.Mutex

	released chan struct{}
	holding  sync.Once
	slept    sync.Map // ids whose handler slept

	joined                     atomic.Bool
	processed, writes, commits atomic.Int64
}

func (m *member) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(m.Database)
	if err != nil {
		return fmt.Errorf("parse the database's URL: %w", err)
	}
	config.MaxConns = 8
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	config.ConnConfig.DialFunc = m.dialer()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("make the pool: %w", err)
	}
	defer pool.Close()

	return kafka.Consume(ctx, kafka.ConsumerConfig{
		Brokers:           []string{m.Broker},
		Group:             m.Group,
		Topics:            []string{m.Topic},
		KeyParallelism:    m.KeyParallelism,
		FetchMaxBytes:     64 << 10, // several fetches for each backlog
		FetchMaxWait:      100 * time.Millisecond,
		SessionTimeout:    sessionTimeout,
		RebalanceTimeout:  rebalanceTimeout,
		HeartbeatInterval: heartbeatInterval,
		DrainTimeout:      drainTimeout,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, nil)),
		OnEvent:           m.report,
	}, m.inbox(pool))
}

func (m *member) inbox(pool *pgxpool.Pool) inbox.Processor {
	store := postgres.New(pool, postgres.WithClaimWait(claimWait), postgres.WithCommitDeadline(commitDeadline))
	options := []inbox.Option{
		inbox.OnEvent(m.report),
		inbox.Logger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		inbox.HandlerTimeout(20 * time.Second),
	}
	switch m.Handling {
	case batched:
		return inbox.New(store, m.Consumer, m.handle, append(options, inbox.Batch(batchSize))...)
	case bulk:
		return inbox.NewBulk(store, m.Consumer, m.handleBulk, append(options, inbox.Batch(batchSize))...)
	default:
		return inbox.New(store, m.Consumer, m.handle, options...)
	}
}

// report is the hook of the inbox and of the adapter.
func (m *member) report(_ context.Context, event inbox.Event) {
	m.print(event.Kind, event.Message.ID)
	if event.Kind == kafka.EventJoined {
		m.joined.Store(true)
	}
	if event.Kind == inbox.EventProcessed && m.processed.Add(1) == int64(m.Death.Processed) {
		die() // committed, and the adapter doesn't know yet
	}
}

// print writes one line at once, so that what was reported before a SIGKILL is in the pipe.
func (m *member) print(kind inbox.EventKind, id string) {
	m.printing.Lock()
	defer m.printing.Unlock()
	fmt.Fprintln(os.Stdout, kind, id)
}

// listen obeys the parent, and ends with it: a closed input means that nobody is there any more.
func (m *member) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case wordGo:
			close(m.released)
		case wordCut:
			m.cutBroker()
		}
	}
	os.Exit(3)
}
