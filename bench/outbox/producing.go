package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
)

const (
	partitions     = 16
	produceOurs    = "log to Kafka, our relay"
	produceMemory  = "our publisher, from memory"
	produceWriter  = "kafka.Writer, from memory"
	produceProduce = "kafka.Client.Produce, from memory"
	// produceBatch is the batch of both direct producers, for each partition.
	produceBatch = 1000
	// produceCall is how many events the Writer and our publisher get at a time.
	produceCall = partitions * produceBatch
)

// producing compares the way from the log into Kafka with kafka-go producing the
// same keys, payloads and ids directly, out of memory.
func (b *bench) producing(ctx context.Context, p *servers.Program, figures *figure.Figures) error {
	target := stack.Topic(p, b.addr, partitions) //nolint:contextcheck // the stack's servers outlive any context
	if err := b.fillLog(ctx, target, b.events); err != nil {
		return err
	}
	events := make([]outbox.Message, b.events)
	for n := range events {
		events[n] = b.event(n, target)
		events[n].ID = outbox.NewID()
	}
	publisher, err := b.publisher(ctx)
	if err != nil {
		return err
	}
	defer publisher.Close()
	result, err := contest.Run(ctx, b.rounds,
		contest.Side{Name: produceWriter, Run: b.produceWriter(target, events)},
		contest.Side{Name: produceOurs, Run: func(ctx context.Context, _ int) (contest.Sample, error) { return b.publishLog(ctx, publisher) }},
		contest.Side{Name: produceMemory, Run: b.produceFromMemory(publisher, events)},
		contest.Side{Name: produceProduce, Run: b.produceDirectly(target, events)},
	)
	if err != nil {
		return err
	}
	printTable("into Kafka with acks=all, 16 partitions", result)
	figures.Ratio("outbox-kafka", result.Ratio(produceOurs, produceWriter), targetKafka)
	figures.OwnRatio("outbox-kafka-vs-produce", result.Ratio(produceOurs, produceProduce), targetKafka)
	figures.OwnRatio("outbox-publisher", result.Ratio(produceMemory, produceWriter), targetPublisher)
	return nil
}

// produceWriter is kafka.Writer as its users run it for throughput: it hashes as
// Java does, waits for all replicas, and gets many messages at a time.
func (b *bench) produceWriter(target string, events []outbox.Message) func(context.Context, int) (contest.Sample, error) {
	return func(ctx context.Context, _ int) (contest.Sample, error) {
		writer := &kafka.Writer{
			Addr: kafka.TCP(b.addr), Topic: target, Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll,
			BatchSize: produceBatch, BatchTimeout: 5 * time.Millisecond,
		}
		defer writer.Close()
		return contest.Measure(func() (int, error) {
			for first := 0; first < len(events); first += produceCall {
				part := events[first:min(first+produceCall, len(events))]
				messages := make([]kafka.Message, len(part))
				for i, e := range part {
					messages[i] = kafka.Message{Key: e.Key, Value: e.Payload, Headers: headersOf(e)}
				}
				if err := writer.WriteMessages(ctx, messages...); err != nil {
					return first, fmt.Errorf("write: %w", err)
				}
			}
			return len(events), nil
		})
	}
}

// produceFromMemory is our publisher without the relay: what of its rate the log costs.
func (b *bench) produceFromMemory(publisher outbox.Publisher, events []outbox.Message) func(context.Context, int) (contest.Sample, error) {
	return func(ctx context.Context, _ int) (contest.Sample, error) {
		return contest.Measure(func() (int, error) {
			for first := 0; first < len(events); first += produceCall {
				part := make([]outbox.Event, min(produceCall, len(events)-first))
				for i := range part {
					part[i] = outbox.Event{Message: events[first+i], CreatedAt: time.Now()}
				}
				for _, err := range publisher.Publish(ctx, part) {
					if err != nil {
						return first, fmt.Errorf("publish: %w", err)
					}
				}
			}
			return len(events), nil
		})
	}
}

// produceDirectly is the fastest way kafka-go has: one synchronous Produce after
// another for each partition, all partitions side by side.
func (b *bench) produceDirectly(target string, events []outbox.Message) func(context.Context, int) (contest.Sample, error) {
	return func(ctx context.Context, _ int) (contest.Sample, error) {
		transport := &kafka.Transport{}
		defer transport.CloseIdleConnections()
		client := &kafka.Client{Addr: kafka.TCP(b.addr), Timeout: 10 * time.Second, Transport: transport}
		all := make([]int, partitions)
		for i := range all {
			all[i] = i
		}
		return contest.Measure(func() (int, error) {
			var balancer kafka.Murmur2Balancer
			byPartition := make([][]outbox.Message, partitions)
			for _, e := range events {
				partition := balancer.Balance(kafka.Message{Key: e.Key}, all...)
				byPartition[partition] = append(byPartition[partition], e)
			}
			group, ctx := errgroup.WithContext(ctx)
			for partition, events := range byPartition {
				group.Go(func() error { return produceAll(ctx, client, target, partition, events) })
			}
			return len(events), group.Wait()
		})
	}
}

func produceAll(ctx context.Context, client *kafka.Client, target string, partition int, events []outbox.Message) error {
	for first := 0; first < len(events); first += produceBatch {
		part := events[first:min(first+produceBatch, len(events))]
		now := time.Now()
		records := make([]kafka.Record, len(part))
		for i, e := range part {
			records[i] = kafka.Record{
				Time: now, Key: kafka.NewBytes(e.Key), Value: kafka.NewBytes(e.Payload),
				Headers: headersOf(e),
			}
		}
		response, err := client.Produce(ctx, &kafka.ProduceRequest{
			Topic: target, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = response.Error
		}
		if err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	return nil
}

// headersOf are what our publisher writes.
func headersOf(e outbox.Message) []kafka.Header {
	headers := make([]kafka.Header, 0, 1+len(e.Headers))
	headers = append(headers, kafka.Header{Key: outbox.HeaderID, Value: []byte(e.ID)})
	for _, h := range e.Headers {
		headers = append(headers, kafka.Header{Key: h.Name, Value: h.Value})
	}
	return headers
}
