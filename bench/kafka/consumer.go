package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
)

// consume runs our consumer with its default limits until the lap has ended and
// everything it began is settled.
func consume(ctx context.Context, addr, topic, group string, p inbox.Processor, l *lap) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.ended, stop)() //nolint:contextcheck // the lap ends by itself
	err := kafka.Consume(ctx, kafka.ConsumerConfig{
		Brokers: []string{addr},
		Group:   group,
		Topics:  []string{topic},
		Logger:  slog.New(slog.DiscardHandler),
	}, timed{p, l})
	if err == nil && l.ended.Err() == nil {
		err = errors.New("ended before its work was done")
	}
	return err
}

// timed counts what a processor has settled.
type timed struct {
	inbox.Processor

	lap *lap
}

func (t timed) Process(ctx context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	t.lap.start()
	results, err := t.Processor.Process(ctx, messages)
	settled := 0
	for _, r := range results {
		if r.Settled() {
			settled++
		}
	}
	if err == nil && settled < len(messages) {
		err = fmt.Errorf("%d of %d messages were not settled", len(messages)-settled, len(messages))
	}
	t.lap.add(settled)
	return results, err
}

// noWork settles every message at once.
type noWork struct{}

func (noWork) Check(context.Context) error  { return nil }
func (noWork) Maintain(ctx context.Context) { <-ctx.Done() }

func (noWork) Process(_ context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	results := make([]inbox.Result, len(messages))
	for i := range results {
		results[i].Outcome = inbox.Processed
	}
	return results, nil
}
