package kafka

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// After a kill nothing else is logged for up to SessionTimeout.
func TestJoiningSaysForWhatAndHowLong(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := reporter{group: "billing", log: slog.New(slog.NewTextHandler(&log, nil))}
	r.joining(t.Context(), ConsumerConfig{Topics: []string{"orders", "payments"}, SessionTimeout: 30 * time.Second})
	if line := log.String(); !strings.Contains(line, "level=INFO msg=kafka_joining group=billing count=2 topics=orders,payments note=") ||
		!strings.Contains(line, "SessionTimeout") || !strings.HasSuffix(line, "duration=30s\n") {
		t.Errorf("log is %s", line)
	}
	var event inbox.Event
	r.hook = func(_ context.Context, e inbox.Event) { event = e }
	r.joining(t.Context(), ConsumerConfig{Topics: []string{"orders"}, SessionTimeout: time.Second})
	if event.Kind != EventJoining || event.Consumer != "billing" || event.Message.Topic != "orders" || event.Count != 1 || event.Duration != time.Second {
		t.Errorf("event is %+v", event)
	}
}
