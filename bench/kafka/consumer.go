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
// everything it began is settled. What it would mend by itself fails the lap.
func consume(ctx context.Context, addr, topic, group string, p inbox.Processor, l *lap) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.ended, stop)() //nolint:contextcheck // the lap ends by itself
	err := kafka.Consume(ctx, kafka.ConsumerConfig{
		Brokers: []string{addr},
		Group:   group,
		Topics:  []string{topic},
		Logger:  slog.New(slog.DiscardHandler),
		OnEvent: func(_ context.Context, e inbox.Event) {
			if l.done.Load() > 0 && !expected[e.Kind] {
				l.fail(errors.Join(fmt.Errorf("event %s", e.Kind), e.Err))
			}
		},
	}, timed{p, l})
	if err != nil {
		return err
	}
	return l.result()
}

// expected are the events of a lap in which nothing went wrong.
var expected = map[inbox.EventKind]bool{
	kafka.EventJoining: true, kafka.EventJoined: true, kafka.EventDrained: true,
}

// timed counts what a processor has settled.
type timed struct {
	inbox.Processor

	lap *lap
}

func (t timed) Process(ctx context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	results, err := t.Processor.Process(ctx, messages)
	settled := 0
	for _, r := range results {
		if r.Settled() {
			settled++
		}
	}
	if settled < len(messages) {
		t.lap.fail(errors.Join(fmt.Errorf("%d of %d messages were not settled", len(messages)-settled, len(messages)), err))
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
