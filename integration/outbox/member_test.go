package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// ordersVariable makes this test binary a member: a process that runs one instance of a relay. It holds its orders.
const ordersVariable = "ONCEWARD_OUTBOX_ORDERS"

// orders is what a member is told to be.
type orders struct {
	Database, Broker string
	Relay            string
	Lanes, Batch     int
	Lease            time.Duration
}

// beMember is the whole life of a member and returns its exit status: 0 after a clean stop.
func beMember(text string) int {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil { //nolint:musttag // both ends are this program
		fmt.Fprintln(os.Stderr, "orders:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // ends with the parent: a closed input means that nobody is there any more
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		return 1
	}
	return 0
}

func (o orders) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(o.Database)
	if err != nil {
		return fmt.Errorf("parse the database's URL: %w", err)
	}
	config.MaxConns = 6
	// By this name the parent knows whose connections they are.
	config.ConnConfig.RuntimeParams["application_name"] = fmt.Sprintf("member %d", os.Getpid())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("make the pool: %w", err)
	}
	defer pool.Close()
	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{o.Broker}})
	defer publisher.Close()

	var printing sync.Mutex
	return outbox.NewRelay(postgres.New(pool), publisher, outbox.RelayConfig{
		Name: o.Relay, Lanes: o.Lanes, Batch: o.Batch, Lease: o.Lease,
		Poll: 100 * time.Millisecond, StopTimeout: 10 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		OnNotice: func(n outbox.Notice) {
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintln(os.Stdout, n.Kind, n.Count) // at once, so that it is in the pipe before a SIGKILL
		},
	}).Run(ctx)
}
