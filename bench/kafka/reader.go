package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/bench/internal/handwritten"
)

// The competitor: kafka.Reader with a group, at the best settings we found for it.
const (
	// readerMaxBytes is the size of a fetch at which a Reader was fastest.
	readerMaxBytes = 10 << 20
	// sameMaxBytes is what our consumer's default buffer leaves for each fetch.
	sameMaxBytes = 22 << 20 / (2 * partitions)
	// readerMaxWait is our default too; Close waits for it at the topic's end.
	readerMaxWait = 500 * time.Millisecond
	// readerQueue: 100 is the default, 10,000 is slower again.
	readerQueue = 1000
	// readerCommitInterval is the cheapest way to commit; it swallows errors.
	readerCommitInterval = time.Second
	// readerCommitEvery spares a Reader that only reads a call a message.
	readerCommitEvery = 1000
)

func newReader(addr, topic, group string, maxBytes int, commitInterval time.Duration) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers:        []string{addr},
		GroupID:        group,
		Topic:          topic,
		MaxBytes:       maxBytes,
		MaxWait:        readerMaxWait,
		QueueCapacity:  readerQueue,
		CommitInterval: commitInterval,
		StartOffset:    kafka.FirstOffset,
		IsolationLevel: kafka.ReadCommitted,
	})
}

// closeReader fails for a Reader that had to try something again, as ours fails
// its lap.
func closeReader(reader *kafka.Reader) error {
	failed := reader.Stats().Errors
	err := reader.Close()
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("kafka.Reader had %d errors, which it retried", failed))
	}
	return err
}

// readWithReader reads and commits, no more.
func readWithReader(ctx context.Context, addr, topic, group string, maxBytes int, l *lap) (err error) {
	reader := newReader(addr, topic, group, maxBytes, readerCommitInterval)
	defer func() { err = errors.Join(err, closeReader(reader)) }()
	fetching, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.ended, stop)() //nolint:contextcheck // the lap ends by itself

	var last [partitions]kafka.Message
	counted := 0
	for read := 1; ; read++ {
		m, err := reader.FetchMessage(fetching)
		if l.over() {
			return l.result()
		}
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		last[m.Partition] = m
		if read%readerCommitEvery != 0 && read != l.target {
			continue
		}
		seen := make([]kafka.Message, 0, partitions)
		for _, m := range last {
			if m.Topic != "" {
				seen = append(seen, m)
			}
		}
		if err := reader.CommitMessages(ctx, seen...); err != nil {
			return fmt.Errorf("commit offsets: %w", err)
		}
		l.add(read - counted)
		counted = read
	}
}

// handleWithReader is the loop a good engineer writes: messages go to one worker
// a partition, which handles each in a transaction and then commits its offset.
// A commit interval of zero commits each and waits for the broker's answer. With
// a batch above one, a worker takes what waits for it, up to so many, and handles
// and commits that together.
func handleWithReader(ctx context.Context, addr, topic, group string, commitInterval time.Duration, batch int, in handwritten.Inbox, l *lap) (err error) {
	reader := newReader(addr, topic, group, readerMaxBytes, commitInterval)
	defer func() { err = errors.Join(err, closeReader(reader)) }()

	workers, ctx := errgroup.WithContext(ctx)
	var queues [partitions]chan kafka.Message
	for p := range queues {
		// Room for all that the Reader holds, so that a partition whose fetch
		// was answered first can't leave the other workers without work.
		queues[p] = make(chan kafka.Message, readerQueue)
		workers.Go(func() error {
			for m := range queues[p] {
				messages := waiting(queues[p], m, batch)
				if err := handle(ctx, reader, in, messages); err != nil {
					return err
				}
				l.add(len(messages))
				if l.over() {
					return nil // what waits is left, or thousands would be handled after the lap
				}
			}
			return nil
		})
	}
	workers.Go(func() error {
		fetching, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(l.ended, stop)() //nolint:contextcheck // the lap ends by itself
		defer func() {
			for _, queue := range queues {
				close(queue)
			}
		}()
		for {
			m, err := reader.FetchMessage(fetching)
			if l.over() {
				return l.result()
			}
			if err != nil {
				return fmt.Errorf("fetch: %w", err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.ended.Done():
				return l.result()
			case queues[m.Partition] <- m:
			}
		}
	})
	return workers.Wait()
}

// waiting returns first and what else is in the queue, at most n messages.
func waiting(queue <-chan kafka.Message, first kafka.Message, n int) []kafka.Message {
	messages := []kafka.Message{first}
	for len(messages) < n {
		select {
		case m, ok := <-queue:
			if !ok {
				return messages
			}
			messages = append(messages, m)
		default:
			return messages
		}
	}
	return messages
}

func handle(ctx context.Context, reader *kafka.Reader, in handwritten.Inbox, messages []kafka.Message) error {
	orders := make([]handwritten.Order, len(messages))
	for i, m := range messages {
		orders[i] = handwritten.Order{ID: orderID(m), Amount: int64(len(m.Value))}
	}
	var err error
	if len(orders) == 1 {
		err = in.One(ctx, orders[0])
	} else {
		err = in.Batch(ctx, orders)
	}
	if err != nil {
		return err
	}
	last := messages[len(messages)-1]
	if err := reader.CommitMessages(ctx, last); err != nil {
		return fmt.Errorf("commit offset %d of partition %d: %w", last.Offset, last.Partition, err)
	}
	return nil
}

func orderID(m kafka.Message) string {
	for _, h := range m.Headers {
		if h.Key == idHeader {
			return string(h.Value)
		}
	}
	return ""
}
