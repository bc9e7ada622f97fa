package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

const (
	// joinBackoff is kafka-go's own wait after it failed to join.
	joinBackoff = 100 * time.Millisecond
	// A generation that ended within shortLife makes the next one wait for
	// pace, so that nothing makes the group spin: not even a storm of
	// rebalances does more than five a second.
	shortLife = time.Second
	pace      = 200 * time.Millisecond
	// closeTimeout bounds leaving the group, and the end of Maintain.
	closeTimeout = 5 * time.Second
)

// Consume reads the topics as a member of the group and hands every message to
// processor, until ctx ends. It blocks.
//
// A config that can't work, an inbox whose store is not ready, brokers that
// can't be reached and topics that don't exist are errors at the start, within
// 20 seconds. Afterwards everything is retried with backoff and reported as an
// event.
//
// When ctx ends, Consume stops fetching, lets handlers finish for DrainTimeout,
// commits, leaves the group and returns nil. It returns an error only if
// handlers ignored their cancelled context and were left behind. It never takes
// longer than DrainTimeout and 40 seconds for it.
func Consume(ctx context.Context, config ConsumerConfig, processor inbox.Processor) (err error) {
	if processor == nil {
		return errors.New("kafka: processor is nil: pass an *inbox.Inbox")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return err
	}

	network := newNetwork()
	defer network.close()
	transport := network.transport(config)
	defer transport.CloseIdleConnections()

	client := &kafka.Client{Addr: kafka.TCP(config.Brokers...), Transport: transport, Timeout: requestTimeout}
	c := &consumer{
		config: config, processor: processor, network: network, client: client,
		events: newReporter(config),
		offsets: &offsets{
			client: client, group: config.Group, startAt: config.StartAt,
			existing: make(map[string]int), missing: make(map[string]bool),
		},
	}
	c.assignor = &assignor{count: c.countPartitions}
	if err := c.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before it began
		}
		return err
	}

	maintaining, stopMaintaining := context.WithCancel(ctx)
	maintained := make(chan struct{})
	go func() {
		defer close(maintained)
		processor.Maintain(maintaining)
	}()
	defer func() {
		stopMaintaining()
		if !waitAtMost(maintained, closeTimeout) {
			err = errors.Join(err, fmt.Errorf("kafka: the inbox's maintenance did not stop within %v", closeTimeout))
		}
	}()
	return c.run(ctx)
}

// consumer is one call of Consume.
type consumer struct {
	config    ConsumerConfig
	processor inbox.Processor
	network   *network
	client    *kafka.Client
	events    reporter
	offsets   *offsets
	assignor  *assignor
}

// run goes from generation to generation until ctx ends.
func (c *consumer) run(ctx context.Context) error {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                c.config.Group,
		Brokers:           c.config.Brokers,
		Topics:            c.config.Topics,
		Dialer:            c.network.dialer(c.config),
		GroupBalancers:    []kafka.GroupBalancer{c.assignor},
		HeartbeatInterval: c.config.HeartbeatInterval,
		SessionTimeout:    c.config.SessionTimeout,
		RebalanceTimeout:  c.config.RebalanceTimeout,
		JoinGroupBackoff:  joinBackoff,
		StartOffset:       kafka.FirstOffset,
		Timeout:           coordinatorTimeout,
	})
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer c.leave(group)

	c.events.joining(ctx, c.config)
	place := membership{group: group, client: c.client, id: c.config.Group}
	var join backoff
	abandoned := int64(0)
	for joined := false; ctx.Err() == nil; {
		member, err := place.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if cause := refused(err, c.config); cause != nil && !joined {
				return cause
			}
			if join.failures == 0 {
				c.events.report(ctx, inbox.Event{Kind: EventRetry, Count: 1, Err: fmt.Errorf("joining the group: %w", err)})
			}
			join.wait(ctx)
			continue
		}
		if join.failures > 0 {
			c.events.report(ctx, inbox.Event{Kind: EventRecovered, Count: join.failures})
			join.reset()
		}
		joined = true

		began := time.Now()
		g := c.newGeneration(member)
		member.Start(func(lease context.Context) { g.run(ctx, lease) })
		<-g.done
		abandoned += g.abandoned.Load()
		if time.Since(began) < shortLife {
			// kafka-go joins again meanwhile and keeps the session.
			sleep(ctx, pace)
		}
	}
	if abandoned > 0 {
		return fmt.Errorf("kafka: %d calls of the inbox ignored their cancelled context and were left behind", abandoned)
	}
	return nil
}

// leave leaves the group. kafka-go waits for the broker without limit, so after
// closeTimeout the connections are cut under it.
func (c *consumer) leave(group *kafka.ConsumerGroup) {
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = group.Close() // never an error
	}()
	if waitAtMost(left, closeTimeout) {
		return
	}
	c.events.report(context.Background(), inbox.Event{Kind: EventCloseTimeout, Count: 1})
	c.network.cut()
	<-left
}
