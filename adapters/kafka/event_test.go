package kafka

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/onceward/onceward/inbox"
)

// A hook that panics is logged, and ends nothing.
func TestPanicOfAHookIsLoggedAndEndsNothing(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	calls := 0
	r := newReporter(ConsumerConfig{Group: "billing", Logger: slog.New(slog.NewTextHandler(&lines, nil)), OnEvent: func(context.Context, inbox.Event) {
		calls++
		panic("no metrics today")
	}})
	for range 2 {
		r.report(t.Context(), inbox.Event{Kind: EventStalled, Count: 1})
	}
	if calls != 2 {
		t.Errorf("the hook was called %d times", calls)
	}
	if got := lines.String(); strings.Count(got, "no metrics today") != 2 || !strings.Contains(got, "OnEvent panicked") {
		t.Errorf("logged %q", got)
	}
}

// fmt recurses into a value that contains itself until the stack overflows, which ends the process.
func TestPanicOfAHookWithAValueThatContainsItselfEndsNothing(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	r := newReporter(ConsumerConfig{Group: "billing", Logger: slog.New(slog.NewTextHandler(&lines, nil)), OnEvent: func(context.Context, inbox.Event) {
		a := []any{nil}
		a[0] = a
		panic(a)
	}})
	r.report(t.Context(), inbox.Event{Kind: EventStalled, Count: 1})
	if got := lines.String(); !strings.Contains(got, "[]interface {}") {
		t.Errorf("logged %q", got)
	}
}

// A logger that panics keeps the event from nobody else.
func TestPanicOfALoggerEndsNothing(t *testing.T) {
	t.Parallel()
	calls := 0
	r := newReporter(ConsumerConfig{Group: "billing", Logger: slog.New(panickingHandler{}), OnEvent: func(context.Context, inbox.Event) {
		calls++
		panic("no metrics today")
	}})
	for range 2 {
		r.report(t.Context(), inbox.Event{Kind: EventStalled, Count: 1})
	}
	if calls != 2 {
		t.Errorf("the hook was called %d times", calls)
	}
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panickingHandler) Handle(context.Context, slog.Record) error { panic("no log today") }
