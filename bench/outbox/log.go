package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// bench is what all sides work on.
type bench struct {
	settings

	url, addr string
	pool      *pgxpool.Pool
	noise     []byte
	relays    int
}

const (
	topic = "orders"
	keys  = 1000
)

// headerNames are those that events have with -headers, in this order.
var headerNames = [...]string{"traceparent", "tracestate", "content-type", "tenant", "schema", "origin", "correlation-id", "causation-id"}

// headerValue is as long as a traceparent's.
const headerValue = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// noise is what payloads are cut from: PostgreSQL would compress large ones of zeros to nothing.
func noise(payload int) []byte {
	bytes := make([]byte, payload+keys)
	_, _ = rand.NewChaCha8([32]byte{}).Read(bytes)
	return bytes
}

// event is the n-th one, the same for all sides.
func (b *bench) event(n int, topic string) outbox.Message {
	m := outbox.Message{Topic: topic, Key: strconv.AppendInt(nil, int64(n%keys), 10), Payload: b.noise[n%keys:][:b.payload]}
	for _, name := range headerNames[:b.headers] {
		m.Headers = append(m.Headers, outbox.Header{Name: name, Value: []byte(headerValue)})
	}
	return m
}

// lazily is a URL of the database whose connections do not wait for the disk when they
// commit. Our relay does not when it saves nothing but positions: what a crash undoes is
// published again. That is true of the others' progress as well.
func (b *bench) lazily() (string, error) {
	u, err := url.Parse(b.url)
	if err != nil {
		return "", errors.New("the server's URL is not a URL") // the error would show a password
	}
	query := u.Query()
	query.Set("synchronous_commit", "off")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// emptyLog forgets what an earlier measurement left in the log.
func (b *bench) emptyLog(ctx context.Context) error { return b.exec(ctx, `TRUNCATE onceward.outbox`) }

// fillLog commits events in transactions of at most 1,000 and 4 MiB, and tells the planner of them.
func (b *bench) fillLog(ctx context.Context, topic string, events int) error {
	if err := b.emptyLog(ctx); err != nil {
		return err
	}
	publisher := outbox.New(postgres.New(b.pool))
	together := min(1000, 1+4<<20/(b.payload+1))
	for first := 0; first < events; first += together {
		messages := make([]outbox.Message, min(together, events-first))
		for i := range messages {
			messages[i] = b.event(first+i, topic)
		}
		err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return publisher.Publish(ctx, tx, messages...) })
		if err != nil {
			return fmt.Errorf("fill the log: %w", err)
		}
	}
	return b.exec(ctx, `VACUUM ANALYZE onceward.outbox`, `CHECKPOINT`)
}

func (b *bench) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := b.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("prepare the benchmark: %w", err)
		}
	}
	return nil
}

// nobody is a publisher that acknowledges everything and sends nothing.
type nobody struct{}

func (nobody) Publish(_ context.Context, events []outbox.Event) []error {
	return make([]error, len(events))
}

// limited ends a relay when its publisher has acknowledged enough.
type limited struct {
	outbox.Publisher

	left atomic.Int64
	done context.CancelFunc
}

func (l *limited) Publish(ctx context.Context, events []outbox.Event) []error {
	results := l.Publisher.Publish(ctx, events)
	acknowledged := 0
	for _, err := range results {
		if err == nil {
			acknowledged++
		}
	}
	if l.left.Add(-int64(acknowledged)) <= 0 {
		l.done()
	}
	return results
}

// publishLog measures a new relay that publishes the whole log.
func (b *bench) publishLog(ctx context.Context, publisher outbox.Publisher) (contest.Sample, error) {
	pool, err := dbpool.Open(ctx, b.url, 2, nil)
	if err != nil {
		return contest.Sample{}, err
	}
	defer pool.Close()
	sample, err := contest.Measure(func() (int, error) {
		ctx, done := context.WithCancel(ctx)
		defer done()
		counted := &limited{Publisher: publisher, done: done}
		counted.left.Store(int64(b.events))
		err := b.relay(ctx, pool, counted)
		return b.events - int(counted.left.Load()), err
	})
	if err == nil && sample.Messages != b.events {
		err = fmt.Errorf("%d acknowledgements of %d events", sample.Messages, b.events)
	}
	if err != nil {
		return sample, err
	}
	return sample, b.passed(ctx)
}

// relay runs a new relay, with positions of its own, until its publisher ends it.
func (b *bench) relay(ctx context.Context, pool *pgxpool.Pool, publisher outbox.Publisher) error {
	b.relays++
	relay := outbox.NewRelay(postgres.New(pool), publisher, outbox.RelayConfig{
		Name: "bench-" + strconv.Itoa(b.relays), Lanes: lanes,
	})
	return relay.Run(ctx)
}

// passed checks that the last relay has saved that it has published everything, and removes it.
func (b *bench) passed(ctx context.Context) error {
	operator := outbox.NewOperator(postgres.New(b.pool))
	status, err := operator.Status(ctx)
	if err != nil {
		return err
	}
	for _, relay := range status {
		if relay.Relay != "bench-"+strconv.Itoa(b.relays) {
			continue
		}
		for _, lane := range relay.Status {
			if lane.Events > 0 {
				return fmt.Errorf("relay %s: lane %d has %d events left", relay.Relay, lane.Lane, lane.Events)
			}
		}
		return operator.Remove(ctx, relay.Relay)
	}
	return fmt.Errorf("no relay bench-%d", b.relays)
}
