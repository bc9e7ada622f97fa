package kafka

import (
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/outbox"
)

// refusal is the result of an event that a broker refused for a reason that
// concerns its partition or its record.
func refusal(q *queue, code kafka.Error, reason string) error {
	said := error(code)
	if reason != "" {
		said = fmt.Errorf("%w: %s", code, reason)
	}
	switch {
	case passing(code), code == kafka.UnknownTopicOrPartition:
		// An unknown partition is one that has moved or isn't loaded yet, or a topic
		// that was deleted: the next call asks, and then says so.
		return fmt.Errorf("kafka: %s: %w: %w", q, outbox.ErrUnavailable, said)
	case code == kafka.InvalidRecord:
		return fmt.Errorf("kafka: %s: the topic takes no such record: %w: %w", q, outbox.ErrPermanent, said)
	case code == kafka.TopicAuthorizationFailed:
		return notAllowed(q.layout.topic)
	default:
		return fmt.Errorf("kafka: %s: %w", q, said)
	}
}

// passing reports whether an error goes away by itself, or with the help of
// whoever runs the brokers: it says nothing about the event.
func passing(code kafka.Error) bool {
	switch code {
	case kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.RequestTimedOut, kafka.BrokerNotAvailable,
		kafka.ReplicaNotAvailable, kafka.NetworkException, kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend,
		kafka.KafkaStorageError, kafka.ListenerNotFound, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch,
		kafka.ThrottlingQuotaExceeded:
		return true
	default:
		return false
	}
}

func notAllowed(topic string) error {
	return fmt.Errorf("kafka: writing topic %q is not allowed: grant Write and Describe to this user: %w", topic, kafka.TopicAuthorizationFailed)
}

// topicError is what keeps a topic from being written at all; nil if nothing does.
func topicError(topic string, code kafka.Error) error {
	switch {
	case code == 0:
		return nil
	case code == kafka.UnknownTopicOrPartition:
		return fmt.Errorf("kafka: topic %q does not exist: create it: %w", topic, code)
	case code == kafka.TopicAuthorizationFailed:
		return notAllowed(topic)
	case code == kafka.InvalidTopic:
		return errTopicName(topic)
	case passing(code):
		return fmt.Errorf("kafka: topic %q: %w: %w", topic, outbox.ErrUnavailable, code)
	default:
		return fmt.Errorf("kafka: topic %q can't be written: %w", topic, code)
	}
}

func errTopicName(topic string) error {
	return fmt.Errorf("kafka: %q (%d bytes) can't be the name of a topic: use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-': %w: %w",
		topic[:min(len(topic), 64)], len(topic), outbox.ErrPermanent, kafka.InvalidTopic)
}

// validTopic keeps names away from brokers that no request can carry.
func validTopic(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
