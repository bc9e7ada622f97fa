package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/onceward/onceward/outbox"
)

const (
	// attemptTimeout bounds one request: connecting, sending, the broker's
	// wait for its replicas, the answer.
	attemptTimeout = 20 * time.Second
	// replicaTimeout is how long a broker waits for its replicas. With
	// kafka-go's Client it depends on a timeout for something else, and is
	// 500 ms without one.
	replicaTimeout = 10 * time.Second
)

// call is one call of Publish. Events go into queues by partition; each broker
// gets the queues that it leads, one request at a time. Several goroutines
// write results, each those of its own queues.
type call struct {
	publisher *Publisher
	events    []outbox.Event
	results   []error
}

func (c *call) run(ctx context.Context) {
	led := c.sort(ctx)
	var sending sync.WaitGroup
	for to, queues := range led {
		if len(led) == 1 {
			c.send(ctx, to, queues)
			return
		}
		sending.Go(func() { c.send(ctx, to, queues) })
	}
	sending.Wait()
}

// sort puts the events into queues, by the broker that leads their partition.
// Those that can be sent to nobody get their results.
func (c *call) sort(ctx context.Context) map[*broker][]*queue {
	routes := c.routes(ctx)
	var last *route
	for i := range c.events {
		e := &c.events[i]
		if last == nil || last.topic != e.Topic {
			last = routes[e.Topic]
		}
		q := last.queue(e)
		q.events = append(q.events, int32(i))
		q.estimate += recordOverhead + len(e.Key) + len(e.Payload) + len(e.ID)
	}
	led := make(map[*broker][]*queue)
	for _, r := range routes {
		for _, q := range r.queues {
			switch {
			case q == nil:
			case r.err != nil:
				q.fail(c, r.err)
			case r.layout.leaders[q.partition] == nil:
				q.fail(c, refusal(q, kafka.LeaderNotAvailable, ""))
			default:
				to := r.layout.leaders[q.partition]
				led[to] = append(led[to], q)
			}
		}
	}
	return led
}

// routes finds out about the topics of the call.
func (c *call) routes(ctx context.Context) map[string]*route {
	routes := make(map[string]*route)
	var names []string
	for i := range c.events {
		topic := c.events[i].Topic
		if i > 0 && topic == c.events[i-1].Topic {
			continue
		}
		if _, known := routes[topic]; !known {
			routes[topic] = &route{topic: topic, maxBytes: c.publisher.config.MaxBatchBytes}
			names = append(names, topic)
		}
	}
	found := c.publisher.cluster.find(ctx, names)
	for topic, r := range routes {
		r.layout, r.err = found[topic].layout, found[topic].err
		if r.err != nil {
			r.layout = &layout{topic: topic}
			r.queues = make([]*queue, 1)
			continue
		}
		r.queues = make([]*queue, len(r.layout.leaders))
		r.turn = c.publisher.cluster.turn.Add(1)
	}
	return routes
}

// route is where the events of a topic go in one call.
type route struct {
	topic    string
	layout   *layout
	err      error // why they can't
	queues   []*queue
	maxBytes int

	// Events without a key go to one partition until its batch is full, then to the
	// next one: large batches cost least.
	turn    uint32
	keyless int // bytes
}

func (r *route) queue(e *outbox.Event) *queue {
	partition := 0
	switch {
	case r.err != nil:
	case e.Key != nil:
		partition = r.layout.partitionOf(e.Key)
	default:
		size := (&recordBatch{}).next(e)
		if r.keyless += size; r.keyless > r.maxBytes {
			r.keyless = size
			r.turn++
		}
		partition = r.layout.anyPartition(r.turn)
	}
	if r.queues[partition] == nil {
		r.queues[partition] = newQueue(r.layout, partition, r.maxBytes)
	}
	return r.queues[partition]
}

// send sends the queues that one broker leads, until all events have their
// results.
func (c *call) send(ctx context.Context, to *broker, queues []*queue) {
	for slices.ContainsFunc(queues, (*queue).pending) {
		batches, answer, err := c.attempt(ctx, to, queues)
		if err != nil {
			// It may have been written. Whatever is still to be sent to this
			// broker would fare no better.
			err = fmt.Errorf("kafka: broker %s: %w: %w", to.address, outbox.ErrUnavailable, err)
			for _, q := range queues {
				q.fail(c, err)
			}
			return
		}
		for _, q := range batches {
			if a := answerFor(answer, q); a != nil {
				q.settle(c, a)
			} else {
				q.fail(c, fmt.Errorf("kafka: %s: the answer leaves it out: %w", q, outbox.ErrUnavailable))
			}
		}
	}
}

// attempt sends the next batch of each queue and returns the queues that had one;
// none if all that was left stood behind events that failed.
func (c *call) attempt(ctx context.Context, to *broker, queues []*queue) (batches []*queue, _ *produce.Response, _ error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := to.throttled(ctx); err != nil {
		return nil, nil, err
	}
	deadline, _ := ctx.Deadline()
	estimate := 0
	for _, q := range queues {
		estimate += min(q.estimate, q.bytes)
	}
	r := newProduceRequest(min(replicaTimeout, time.Until(deadline)/2), estimate)
	for _, q := range queues {
		added, err := q.fill(c, r)
		if err != nil {
			return nil, nil, err
		}
		if added {
			batches = append(batches, q)
		}
	}
	if len(batches) == 0 {
		r.release()
		return nil, nil, nil
	}
	m, err := to.roundTrip(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	answer := m.(*produce.Response)
	to.throttle(time.Duration(answer.ThrottleTimeMs) * time.Millisecond)
	return batches, answer, nil
}

func answerFor(answer *produce.Response, q *queue) *produce.ResponsePartition {
	for i := range answer.Topics {
		t := &answer.Topics[i]
		if t.Topic != q.layout.topic {
			continue
		}
		for j := range t.Partitions {
			if p := &t.Partitions[j]; p.Partition == int32(q.partition) {
				return p
			}
		}
	}
	return nil
}
