package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/onceward/onceward/outbox"
)

// Publisher publishes the events of an outbox to Kafka: the outbox.Publisher of
// a relay. It is safe for concurrent use, and holds connections until Close.
type Publisher struct {
	config  PublisherConfig
	invalid error // of config: nothing can be published
	network *network
	cluster *cluster

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup // of Publish and Check
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher. It connects to nobody: Check does, and the
// first Publish. A config that can't work is reported by both, and by Validate.
func NewPublisher(config PublisherConfig) *Publisher {
	config = config.withDefaults()
	network := newNetwork()
	return &Publisher{
		config: config, invalid: config.validate(),
		network: network, cluster: newCluster(config, network),
	}
}

// Validate returns what is wrong with the config, and asks nobody. A relay does it
// before it starts.
func (p *Publisher) Validate() error { return p.invalid }

// Check finds out whether publishing can work: it connects, with TLS and SASL,
// and names the real cause if that fails. It takes at most 20 seconds.
func (p *Publisher) Check(ctx context.Context) error {
	if err := p.begin(); err != nil {
		return err
	}
	defer p.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err := p.cluster.ask(ctx, []string{})
	return err
}

// Publish sends events and returns their results, in their order; see
// outbox.Publisher. Each partition gets one batch at a time, and each batch one
// attempt of at most 20 seconds, all partitions at once. The result of an event
// that failed wraps
//
//	outbox.ErrUnavailable  no answer, no connection, no leader, too few replicas,
//	                       over the quota: it may have been written all the same
//	outbox.ErrPermanent    too large, refused as a record, no name of a topic
//	outbox.ErrBehind       an earlier one with its topic and key failed
//
// or none of them: the topic does not exist or is not allowed, or else what the
// broker said. Keys, payloads and header values are nil where they are null. A record's
// time is the event's CreatedAt, or the time of this clock if that is earlier.
func (p *Publisher) Publish(ctx context.Context, events []outbox.Event) []error {
	if len(events) == 0 {
		return nil
	}
	c := &call{publisher: p, events: events, results: make([]error, len(events))}
	if err := p.begin(); err != nil {
		for i := range c.results {
			c.results[i] = fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		}
		return c.results
	}
	defer p.calls.Done()
	c.run(ctx)
	return c.results
}

// begin admits a call, which ends with calls.Done.
func (p *Publisher) begin() error {
	if p.invalid != nil {
		return p.invalid
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("kafka: the publisher is closed")
	}
	p.calls.Add(1)
	return nil
}

// Close ends the publisher: calls under way go on for 5 seconds, then their
// connections are cut, and that is an error. Afterwards nothing of it is left.
// Stop the relay first.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.calls.Wait()
	}()
	var err error
	if !waitAtMost(ended, closeTimeout) {
		err = fmt.Errorf("kafka: calls of Publish were still under way after %v, and were cut off: stop the relay before Close", closeTimeout)
		p.network.cut()
		<-ended
	}
	p.cluster.close()
	p.network.close()
	return err
}
