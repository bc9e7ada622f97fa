package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
)

const watermillTopic = "bench_forwarder"

// watermillForwarder is Watermill's forwarder over its own table.
type watermillForwarder struct {
	b      *bench
	events int
}

// watermillSchema reads 100 messages at a time: the default, and the best of the
// sizes tried. The payload is bytes, as ours is.
func watermillSchema() sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{
		SubscribeBatchSize:  100,
		GeneratePayloadType: func(string) string { return "BYTEA" },
	}
}

// newForwarder fills Watermill's table through its own publisher.
func (b *bench) newForwarder(ctx context.Context, events int) (*watermillForwarder, error) {
	f := &watermillForwarder{b, events}
	subscriber, err := f.subscriber(sql.BeginnerFromPgx(b.pool), "schema")
	if err != nil {
		return nil, err
	}
	defer subscriber.Close()
	if err := subscriber.SubscribeInitialize(watermillTopic); err != nil {
		return nil, fmt.Errorf("create Watermill's tables: %w", err)
	}
	for first := 0; first < events; first += 100 {
		err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
			table, err := sql.NewPublisher(sql.TxFromPgx(tx), sql.PublisherConfig{SchemaAdapter: watermillSchema()}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			messages := make([]*message.Message, 0, 100)
			for n := first; n < min(first+100, events); n++ {
				m := b.messageOf(n)
				m.SetContext(ctx)
				messages = append(messages, m)
			}
			return forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: watermillTopic}).Publish(topic, messages...)
		})
		if err != nil {
			return nil, fmt.Errorf("fill Watermill's table: %w", err)
		}
	}
	return f, b.exec(ctx, `VACUUM ANALYZE`)
}

func (b *bench) messageOf(n int) *message.Message {
	e := b.event(n, topic)
	m := message.NewMessage(watermill.NewUUID(), e.Payload)
	m.Metadata.Set("key", string(e.Key))
	for _, h := range e.Headers {
		m.Metadata.Set(h.Name, string(h.Value))
	}
	return m
}

func (f *watermillForwarder) subscriber(db sql.Beginner, group string) (*sql.Subscriber, error) {
	return sql.NewSubscriber(db, sql.SubscriberConfig{
		ConsumerGroup:  group,
		SchemaAdapter:  watermillSchema(),
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   time.Millisecond,
	}, watermill.NopLogger{})
}

// round reads the whole table as a new consumer group.
func (f *watermillForwarder) round(ctx context.Context, round int) (contest.Sample, error) {
	url, err := f.b.lazily()
	if err != nil {
		return contest.Sample{}, err
	}
	pool, err := dbpool.Open(ctx, url, 2, nil)
	if err != nil {
		return contest.Sample{}, err
	}
	defer pool.Close()
	subscriber, err := f.subscriber(sql.BeginnerFromPgx(pool), "round-"+strconv.Itoa(round))
	if err != nil {
		return contest.Sample{}, err
	}
	sample, err := contest.Measure(func() (int, error) {
		ctx, done := context.WithCancel(ctx)
		defer done()
		publisher := &watermillNull{done: done}
		publisher.left.Store(int64(f.events))
		forward, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: watermillTopic})
		if err != nil {
			return 0, err
		}
		err = forward.Run(ctx)
		return f.events - int(publisher.left.Load()), err
	})
	if err == nil && sample.Messages != f.events {
		err = fmt.Errorf("%d of %d messages were forwarded", sample.Messages, f.events)
	}
	return sample, err
}

type watermillNull struct {
	left atomic.Int64
	done context.CancelFunc
}

func (n *watermillNull) Publish(_ string, messages ...*message.Message) error {
	if n.left.Add(-int64(len(messages))) == 0 {
		n.done()
	}
	return nil
}

func (n *watermillNull) Close() error { return nil }
