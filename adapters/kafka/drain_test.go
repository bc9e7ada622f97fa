package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// eventLog is a reporter's hook that remembers.
type eventLog struct {
	mu     sync.Mutex
	events []inbox.Event
}

func (l *eventLog) reporter() reporter {
	return reporter{group: "billing", log: slog.New(slog.DiscardHandler), hook: func(_ context.Context, e inbox.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, e)
	}}
}

func (l *eventLog) kinds() []inbox.EventKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []inbox.EventKind
	for _, e := range l.events {
		out = append(out, e.Kind)
	}
	return out
}

// A coordinator that can't be reached is told again and again while a generation drains. Each time may bring the end of
// the drain nearer, and never put it off.
func TestDrainEndsWhileTheCoordinatorStaysUnreachable(t *testing.T) {
	t.Parallel()
	var log eventLog
	g := &generation{
		consumer:  &consumer{config: ConsumerConfig{SessionTimeout: time.Hour, DrainTimeout: 300 * time.Millisecond}, events: log.reporter()},
		cancelled: make(chan error, 1),
	}
	idle := make(chan struct{})
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		g.drain(t.Context(), idle, func(cause error) {
			if !errors.Is(cause, errDrained) {
				t.Errorf("the handlers were cancelled because %v", cause)
			}
			close(idle) // they return
		})
	}()
	again := time.NewTicker(10 * time.Millisecond) // sooner than any end that is put off can come
	defer again.Stop()
	for limit := time.After(10 * time.Second); ; {
		select {
		case <-again.C:
			g.lost(errors.New("i/o timeout"))
		case <-drained:
			return
		case <-limit:
			t.Fatal("it drains for ever")
		}
	}
}
