package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// logOf is a store whose log has events without end, so that what is measured is
// the relay. Its positions are numbers.
type logOf struct {
	*fakeStore

	events []outbox.Event
}

func (s *logOf) Read(_ context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	events := make([]outbox.Event, r.Limit)
	copy(events, s.events)
	for i := range events {
		events[i].Number = r.Position.Last + int64(i) + 1
	}
	c := outbox.Chunk{Events: events, Window: r.Position, More: true}
	c.End = c.Window.Behind(events[len(events)-1])
	return c, nil
}

// BenchmarkRelay is what a relay costs for each event, beside store and publisher.
func BenchmarkRelay(b *testing.B) {
	for _, lanes := range []int{1, 16} {
		b.Run(fmt.Sprint("lanes=", lanes), func(b *testing.B) {
			s := &logOf{newFakeStore(), make([]outbox.Event, 1000)}
			for i := range s.events {
				s.events[i] = outbox.Event{Lane: i * 7 % lanes, Message: outbox.Message{
					ID: strconv.Itoa(i), Topic: "orders", Key: []byte(strconv.Itoa(i % 100)), Payload: make([]byte, 500),
				}}
			}
			ctx, cancel := context.WithCancel(b.Context())
			var published atomic.Int64
			publisher := &fakeBroker{whole: func(_ context.Context, events []outbox.Event) []error {
				if published.Add(int64(len(events))) >= int64(b.N) {
					cancel()
				}
				return make([]error, len(events))
			}}
			relay := outbox.NewRelay(s, publisher, outbox.RelayConfig{Name: "events", Lanes: lanes, Logger: slog.New(slog.DiscardHandler)})
			b.ReportAllocs()
			b.ResetTimer()
			if err := relay.Run(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}
