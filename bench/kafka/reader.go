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
	// readerMaxBytes is the size of a fetch at which a Reader is fastest: ten
	// times what our consumer asks for by default, and ten times the memory.
	readerMaxBytes = 10 << 20
	// sameMaxBytes is what our consumer asks for by default.
	sameMaxBytes = 2 << 20
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

// readWithReader reads and commits, no more.
func readWithReader(ctx context.Context, addr, topic, group string, maxBytes int, l *lap) (err error) {
	reader := newReader(addr, topic, group, maxBytes, readerCommitInterval)
	defer func() { err = errors.Join(err, reader.Close()) }()

	var last [partitions]kafka.Message
	counted := 0
	for read := 1; ; read++ {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		if read == 1 {
			l.start()
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
		if l.add(read - counted); l.ended.Err() != nil {
			return nil
		}
		counted = read
	}
}

// handleWithReader is the loop a good engineer writes: messages go to one worker
// a partition, which handles each in a transaction and then commits its offset.
// A commit interval of zero commits each and waits for the broker's answer.
func handleWithReader(ctx context.Context, addr, topic, group string, commitInterval time.Duration, in handwritten.Inbox, l *lap) (err error) {
	reader := newReader(addr, topic, group, readerMaxBytes, commitInterval)
	defer func() { err = errors.Join(err, reader.Close()) }()

	workers, ctx := errgroup.WithContext(ctx)
	var queues [partitions]chan kafka.Message
	for p := range queues {
		queues[p] = make(chan kafka.Message, 100)
		workers.Go(func() error {
			for m := range queues[p] {
				if err := handleMessage(ctx, reader, in, m); err != nil {
					return err
				}
				l.add(1)
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
			if l.ended.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("fetch: %w", err)
			}
			l.start()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case queues[m.Partition] <- m:
			}
		}
	})
	return workers.Wait()
}

func handleMessage(ctx context.Context, reader *kafka.Reader, in handwritten.Inbox, m kafka.Message) error {
	var id string
	for _, h := range m.Headers {
		if h.Key == idHeader {
			id = string(h.Value)
			break
		}
	}
	if err := in.One(ctx, handwritten.Order{ID: id, Amount: int64(len(m.Value))}); err != nil {
		return err
	}
	if err := reader.CommitMessages(ctx, m); err != nil {
		return fmt.Errorf("commit offset %d of partition %d: %w", m.Offset, m.Partition, err)
	}
	return nil
}
