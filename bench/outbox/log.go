package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// bench is what all sides work on.
type bench struct {
	settings

	url, addr string
	pool      *pgxpool.Pool
	relays    int
}

const topic = "orders"

// event is the n-th one, the same for all sides.
func event(n int, topic string) outbox.Message {
	return outbox.Message{Topic: topic, Key: strconv.AppendInt(nil, int64(n%1000), 10), Payload: make([]byte, payloadBytes)}
}

// emptyLog forgets what an earlier measurement left in the log.
func (b *bench) emptyLog(ctx context.Context) error { return b.exec(ctx, `TRUNCATE onceward.outbox`) }

// fillLog commits events in transactions of 1,000 and tells the planner of them.
func (b *bench) fillLog(ctx context.Context, topic string, events int) error {
	if err := b.emptyLog(ctx); err != nil {
		return err
	}
	publisher := outbox.New(postgres.New(b.pool))
	for first := 0; first < events; first += 1000 {
		messages := make([]outbox.Message, min(1000, events-first))
		for i := range messages {
			messages[i] = event(first+i, topic)
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

// nullPublisher acknowledges everything and ends its relay when it has seen enough.
type nullPublisher struct {
	left atomic.Int64
	done context.CancelFunc
}

func (n *nullPublisher) Publish(_ context.Context, events []outbox.Event) []error {
	if n.left.Add(-int64(len(events))) <= 0 {
		n.done()
	}
	return make([]error, len(events))
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
