// Package kafka_test proves the rules of the Kafka consumer: rows X1 to X7 and K1 to K20. Most run on an in-process
// broker that can be told to misbehave; those that depend on how Apache Kafka really behaves run on it.
package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }

// patience bounds every wait for a condition.
const patience = 60 * time.Second

// fakeCluster is an in-process broker with quick rebalances and one topic, "orders".
func fakeCluster(t *testing.T, partitions int32, options ...kfake.Opt) (*kfake.Cluster, string) {
	t.Helper()
	options = append([]kfake.Opt{
		kfake.NumBrokers(1),
		kfake.SeedTopics(partitions, "orders"),
		kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}, options...)
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster, cluster.ListenAddrs()[0]
}

// quick is a config whose rebalances and failures are soon noticed.
func quick(addr string, topics ...string) kafka.ConsumerConfig {
	if len(topics) == 0 {
		topics = []string{"orders"}
	}
	return kafka.ConsumerConfig{
		Brokers: []string{addr}, Group: "billing", Topics: topics,
		SessionTimeout: 6 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
		RebalanceTimeout: 10 * time.Second, DrainTimeout: 2 * time.Second, FetchMaxWait: 100 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// running is a Consume under test.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu     sync.Mutex
	events []inbox.Event
}

// consume starts a consumer. The test stops it, or its cleanup does.
func consume(t *testing.T, config kafka.ConsumerConfig, processor inbox.Processor) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cancel: cancel, done: make(chan struct{})}
	hook := config.OnEvent
	config.OnEvent = func(ctx context.Context, event inbox.Event) {
		r.mu.Lock()
		r.events = append(r.events, event)
		r.mu.Unlock()
		if hook != nil {
			hook(ctx, event)
		}
	}
	go func() {
		defer close(r.done)
		r.err = kafka.Consume(ctx, config, processor)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-r.done:
		case <-time.After(patience):
			t.Error("Consume did not return")
		}
		if t.Failed() {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, e := range r.events {
				t.Logf("%s %s %s count=%d duration=%v error=%v", e.Consumer, e.Kind, e.Message.Position, e.Count, e.Duration, e.Err)
			}
		}
	})
	return r
}

// stop ends the consumer and demands a clean return.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	if err := r.result(); err != nil {
		r.t.Fatalf("Consume returned %v", err)
	}
}

// result waits for the return of Consume.
func (r *running) result() error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		r.t.Fatal("Consume did not return")
		return nil
	}
}

func (r *running) seen(kind inbox.EventKind) []inbox.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []inbox.Event
	for _, e := range r.events {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// await waits for an event.
func (r *running) await(kind inbox.EventKind) inbox.Event {
	r.t.Helper()
	eventually(r.t, "event "+string(kind), func() bool { return len(r.seen(kind)) > 0 })
	return r.seen(kind)[0]
}

// recorder is a Processor that remembers what it was given. handle may decide otherwise than Processed.
type recorder struct {
	handle func(ctx context.Context, m inbox.Message) (inbox.Result, error)

	mu       sync.Mutex
	messages []inbox.Message
	effects  map[string]int
}

func (r *recorder) Check(context.Context) error { return nil }

func (r *recorder) Maintain(ctx context.Context) { <-ctx.Done() }

func (r *recorder) Process(ctx context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	results := make([]inbox.Result, len(messages))
	for i, m := range messages {
		result := inbox.Result{Outcome: inbox.Processed}
		if r.handle != nil {
			var err error
			if result, err = r.handle(ctx, m); err != nil {
				return results, err
			}
		}
		results[i] = result
		if !result.Settled() {
			return results, nil
		}
		r.mu.Lock()
		if r.effects == nil {
			r.effects = make(map[string]int)
		}
		r.messages = append(r.messages, kept(m))
		if r.effects[m.ID]++; r.effects[m.ID] > 1 && result.Outcome == inbox.Processed {
			results[i].Outcome = inbox.Duplicate
		}
		r.mu.Unlock()
	}
	return results, nil
}

// kept is a copy to keep: the bytes of a settled message may be overwritten.
func kept(m inbox.Message) inbox.Message {
	m.Key, m.Payload, m.Headers = bytes.Clone(m.Key), bytes.Clone(m.Payload), slices.Clone(m.Headers)
	for i := range m.Headers {
		m.Headers[i].Value = bytes.Clone(m.Headers[i].Value)
	}
	return m
}

// distinct is how many different messages were settled.
func (r *recorder) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.effects)
}

func (r *recorder) settled() []inbox.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]inbox.Message(nil), r.messages...)
}

var processed = inbox.Result{Outcome: inbox.Processed}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// client talks to the broker beside the consumer.
func client(t *testing.T, addr string) *kafkago.Client {
	t.Helper()
	transport := &kafkago.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &kafkago.Client{Addr: kafkago.TCP(addr), Transport: transport, Timeout: patience}
}

// record makes a record with an ID.
func record(id string) kafkago.Record {
	return kafkago.Record{
		Key: kafkago.NewBytes([]byte("key-" + id)), Value: kafkago.NewBytes([]byte("value-" + id)),
		Headers: []kafkago.Header{{Key: inbox.HeaderID, Value: []byte(id)}},
	}
}

// numbered makes records m<from> … m<to-1>.
func numbered(from, to int) []kafkago.Record {
	var out []kafkago.Record
	for i := from; i < to; i++ {
		out = append(out, record("m"+strconv.Itoa(i)))
	}
	return out
}

func produce(t *testing.T, c *kafkago.Client, topic string, partition int, records ...kafkago.Record) {
	t.Helper()
	response, err := c.Produce(t.Context(), &kafkago.ProduceRequest{
		Topic: topic, Partition: partition, RequiredAcks: kafkago.RequireAll, Records: kafkago.NewRecordReader(records...),
	})
	if err == nil {
		err = response.Error
	}
	if err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// committed is the offset of a partition that the group "billing" has committed, or -1.
func committed(t *testing.T, c *kafkago.Client, topic string, partition int) int64 {
	t.Helper()
	return committedBy(c, "billing", topic, partition)
}

func committedBy(c *kafkago.Client, group, topic string, partition int) int64 {
	response, err := c.OffsetFetch(context.Background(), &kafkago.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {partition}},
	})
	if err != nil {
		return -1
	}
	for _, p := range response.Topics[topic] {
		if p.Partition == partition && p.Error == nil {
			return p.CommittedOffset
		}
	}
	return -1
}

func awaitCommitted(t *testing.T, c *kafkago.Client, topic string, partition int, offset int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("offset %d of %s/%d", offset, topic, partition), func() bool {
		return committed(t, c, topic, partition) == offset
	})
}

// noLeaks demands that the goroutines of everything under test end, except those that ran before.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}
