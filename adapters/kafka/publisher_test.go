package kafka

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/outbox"
)

// K12: what each answer of a broker means for the event.
func TestK12AnswersAndWhatTheyMean(t *testing.T) {
	t.Parallel()
	plain := errors.New("another error")
	for c, want := range map[kafka.Error]error{
		kafka.NotLeaderForPartition:        outbox.ErrUnavailable,
		kafka.LeaderNotAvailable:           outbox.ErrUnavailable,
		kafka.RequestTimedOut:              outbox.ErrUnavailable,
		kafka.NotEnoughReplicas:            outbox.ErrUnavailable,
		kafka.NotEnoughReplicasAfterAppend: outbox.ErrUnavailable,
		kafka.KafkaStorageError:            outbox.ErrUnavailable,
		kafka.ThrottlingQuotaExceeded:      outbox.ErrUnavailable,
		kafka.UnknownTopicOrPartition:      outbox.ErrUnavailable, // metadata has just said otherwise
		kafka.MessageSizeTooLarge:          outbox.ErrPermanent,
		kafka.RecordListTooLarge:           outbox.ErrPermanent,
		kafka.InvalidRecord:                outbox.ErrPermanent,
		kafka.InvalidMessage:               plain, // corrupt on the way, or a null key on an old broker's compacted topic
		kafka.InvalidTimestamp:             plain,
		kafka.TopicAuthorizationFailed:     plain,
		kafka.ClusterAuthorizationFailed:   plain,
		kafka.UnsupportedForMessageFormat:  plain,
		kafka.PolicyViolation:              plain,
		kafka.Unknown:                      plain,
	} {
		t.Run(strconv.Itoa(int(c)), func(t *testing.T) {
			t.Parallel()
			s := newScript(t, 1)
			s.partitions["orders"] = 1
			s.reply = code(c, "a1")
			results := s.publisher(t).Publish(t.Context(), []outbox.Event{event("orders", "a", "a1")})
			if !errors.Is(results[0], c) || !strings.Contains(results[0].Error(), `topic "orders"`) {
				t.Errorf("the cause is not named: %v", results[0])
			}
			for _, class := range []error{outbox.ErrUnavailable, outbox.ErrPermanent, outbox.ErrBehind} {
				if is := errors.Is(results[0], class); is != errors.Is(want, class) {
					t.Errorf("%v: is %v: %v", results[0], class, is)
				}
			}
		})
	}
}

// X6: after Close nothing is published and nothing is left; a call that hangs is cut off.
func TestX6CloseEndsEverything(t *testing.T) {
	t.Parallel()
	s := newScript(t, 1)
	s.partitions["orders"] = 1
	p := NewPublisher(PublisherConfig{Brokers: []string{s.listeners[0].Addr().String()}})
	release := make(chan struct{})
	defer close(release)
	asked := make(chan struct{})
	s.request = func(int) bool { close(asked); <-release; return true }
	done := make(chan []error)
	go func() { done <- p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")}) }()
	<-asked
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "stop the relay before Close") {
		t.Errorf("Close: %v", err)
	}
	if err := (<-done)[0]; !errors.Is(err, outbox.ErrUnavailable) {
		t.Errorf("the call that was cut off: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if err := p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})[0]; !errors.Is(err, outbox.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
	if err := p.Check(t.Context()); err == nil {
		t.Error("Check after Close")
	}
	if len(p.network.open) != 0 {
		t.Errorf("%d connections are open", len(p.network.open))
	}
}

// A config that can't work is told by Validate, Check and every result, naming the field, and spends no attempts.
func TestBadPublisherConfigNamesTheField(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]PublisherConfig{
		"Brokers is empty":       {},
		`Brokers[0] "localhost"`: {Brokers: []string{"localhost"}},
		"MaxBatchBytes is 5":     {Brokers: []string{"a:1"}, MaxBatchBytes: 5},
		"MaxBatchBytes is 107":   {Brokers: []string{"a:1"}, MaxBatchBytes: 1 << 30},
		"Compression is 9":       {Brokers: []string{"a:1"}, Compression: 9},
	} {
		p := NewPublisher(config)
		if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check: %v, want %q", err, want)
		}
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want %q", err, want)
		}
		err := p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})[0]
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, outbox.ErrUnavailable) {
			t.Errorf("Publish: %v, want %q", err, want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// K17: a peer that nobody reaches is named by its real cause in the results, too, and is retriable.
func TestK17ResultsNameTheRealCause(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p := NewPublisher(PublisherConfig{Brokers: []string{address}})
	defer p.Close()
	err = p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})[0]
	if !errors.Is(err, outbox.ErrUnavailable) || !strings.Contains(err.Error(), "nothing listens there") {
		t.Errorf("error %v", err)
	}
}
