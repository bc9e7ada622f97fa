package kafka

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// A dial that timed out is a failure to be reported and retried with backoff. It is not the end of the patience with a
// ghost, though its error is context.DeadlineExceeded as well.
func TestDialThatTimedOutIsNoGhost(t *testing.T) {
	t.Parallel()
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: "billing", Brokers: []string{"localhost:9092"}, Topics: []string{"orders"}, JoinGroupBackoff: time.Hour,
		Dialer: &kafka.Dialer{DialFunc: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { group.Close() })
	// Without a client, dismissing the ghost would panic.
	place := membership{group: group, id: "billing", ghost: "billing-1"}
	if _, err := place.next(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if place.ghost == "" {
		t.Error("the ghost is forgotten")
	}
}
