package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

const (
	eventsPerSecond = 1000
	// writers share the pace, each with a connection: a commit waits for the disk, and
	// few could not keep it up.
	writers = 16
)

// latencies measures from COMMIT's return to the broker's acknowledgement, of
// events that come one in a transaction. The writers have a store of their own, as
// another process would: the relay gets no signal from them.
func (b *bench) latencies(ctx context.Context, p *servers.Program, figures *figure.Figures) error {
	if err := b.emptyLog(ctx); err != nil {
		return err
	}
	target := stack.Topic(p, b.addr, partitions) //nolint:contextcheck // the stack's servers outlive any context
	publisher, err := b.publisher(ctx)
	if err != nil {
		return err
	}
	defer publisher.Close()
	pool, err := dbpool.Open(ctx, b.url, 4, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	clock := &stopwatch{Publisher: publisher, committed: map[string]time.Time{}, acknowledged: map[string]time.Time{}}
	total := int(b.latency.Seconds()) * eventsPerSecond

	relayCtx, stop := context.WithCancel(ctx)
	defer stop()
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return b.relay(relayCtx, pool, clock) })
	group.Go(func() error {
		defer stop()
		if err := b.writeAtPace(both, target, total, clock); err != nil {
			return err
		}
		return clock.await(both, total)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	took := clock.latencies()
	took = took[len(took)/10:] // The first tenth warms up.
	slices.Sort(took)
	at := func(percent int) float64 {
		return float64(took[min(len(took)-1, len(took)*percent/100)]) / float64(time.Millisecond)
	}
	fmt.Printf("\ncommit to acknowledgement, %d events at %d a second: p50 %.1f ms, p90 %.1f, p99 %.1f, most %.1f\n",
		len(took), eventsPerSecond, at(50), at(90), at(99), at(100))
	figures.AtMost("outbox-latency-p50-ms", at(50), targetP50)
	figures.AtMost("outbox-latency-p99-ms", at(99), targetP99)
	return b.passed(ctx)
}

func (b *bench) publisher(ctx context.Context) (*kafka.Publisher, error) {
	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{b.addr}})
	return publisher, publisher.Check(ctx)
}

// writeAtPace commits total events, one each millisecond over all writers. A
// writer that falls behind goes on at once until it has caught up.
func (b *bench) writeAtPace(ctx context.Context, topic string, total int, clock *stopwatch) error {
	pool, err := dbpool.Open(ctx, b.url, writers, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	events := outbox.New(postgres.New(pool))
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error {
			for n := w; n < total; n += writers {
				due := time.NewTimer(time.Until(start.Add(time.Duration(n) * time.Second / eventsPerSecond)))
				select {
				case <-due.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				m := b.event(n, topic)
				m.ID = outbox.NewID()
				if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return events.Publish(ctx, tx, m) }); err != nil {
					return fmt.Errorf("commit an event: %w", err)
				}
				clock.commit(m.ID)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	// A thousand a second must have been offered, or the figure is of another load.
	if took, most := time.Since(start), time.Duration(total)*time.Second/eventsPerSecond*11/10; took > most {
		return fmt.Errorf("%d commits took %v, want at most %v: the machine is too slow or too busy for %d a second", total, took, most, eventsPerSecond)
	}
	return nil
}

// stopwatch notes when events were committed and acknowledged.
type stopwatch struct {
	outbox.Publisher

	mu                      sync.Mutex
	order                   []string
	committed, acknowledged map[string]time.Time
}

func (s *stopwatch) commit(id string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed[id] = now
	s.order = append(s.order, id)
}

func (s *stopwatch) Publish(ctx context.Context, events []outbox.Event) []error {
	results := s.Publisher.Publish(ctx, events)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range events {
		if results[i] == nil {
			s.acknowledged[events[i].ID] = now
		}
	}
	return results
}

// await returns when all events are acknowledged.
func (s *stopwatch) await(ctx context.Context, total int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for {
		s.mu.Lock()
		n := len(s.acknowledged)
		s.mu.Unlock()
		if n >= total {
			return nil
		}
		select {
		case <-tick.C:
		case <-limit:
			return fmt.Errorf("%d of %d events were acknowledged within a minute", n, total)
		case <-ctx.Done():
			return errors.New("ended early")
		}
	}
}

// latencies are in the order of the commits. An event may be acknowledged before
// its COMMIT has returned; that is no time at all.
func (s *stopwatch) latencies() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := make([]time.Duration, len(s.order))
	for i, id := range s.order {
		took[i] = max(0, s.acknowledged[id].Sub(s.committed[id]))
	}
	return took
}
