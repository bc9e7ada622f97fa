package badinput

import (
	"testing"

	"github.com/segmentio/kafka-go"

	onceward "github.com/onceward/onceward/adapters/kafka"
)

// TestPartitionThatIsUnknownByNow takes the topic away under a running consumer and makes it again with one partition
// less. The partition that is gone hinders nobody.
func TestPartitionThatIsUnknownByNow(t *testing.T) {
	t.Parallel()
	s := newPartitionedService(t, 2)
	stop := s.consume(write)
	s.send(message{id: id("first")})
	s.await("the first message has its effect", func() bool { return s.effects("first") == 1 })

	deleted, err := s.client.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{s.topic}})
	if err == nil {
		err = deleted.Errors[s.topic]
	}
	if err != nil {
		t.Fatalf("delete the topic: %v", err)
	}
	s.await("the topic is missed", func() bool { return s.seen(onceward.EventTopicMissing) > 0 })

	// The broker may still be at the deletion.
	s.await("the topic is made again", func() bool {
		created, err := s.client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
			Topics: []kafka.TopicConfig{{Topic: s.topic, NumPartitions: 1, ReplicationFactor: -1}},
		})
		return err == nil && created.Errors[s.topic] == nil
	})
	before := s.seen(onceward.EventJoined)
	s.await("the group has the new topic", func() bool { return s.seen(onceward.EventJoined) > before })
	s.send(message{id: id(nextID)})
	s.await("a message of the new topic has its effect", func() bool { return s.effects(nextID) == 1 })
	stop()
	s.wantEffects(map[string]int{"first": 1})
}

// TestCommittedOffsetBeyondTheEnd is a group whose offset the log does not have: reported, and what the log has is handled.
func TestCommittedOffsetBeyondTheEnd(t *testing.T) {
	t.Parallel()
	s := newService(t)
	committed, err := s.client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{
		GroupID: s.topic, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{s.topic: {{Partition: 0, Offset: 1000}}},
	})
	if err == nil {
		err = committed.Topics[s.topic][0].Error
	}
	if err != nil {
		t.Fatalf("commit an offset beyond the end: %v", err)
	}
	s.send(message{id: id("there")})
	stop := s.consume(write)
	s.await("the offset is found out", func() bool { return s.seen(onceward.EventOffsetReset) > 0 })
	s.await("what was there has its effect", func() bool { return s.effects("there") == 1 })
	s.send(message{id: id(nextID)})
	s.await("the next message has its effect", func() bool { return s.effects(nextID) == 1 })
	stop()
}
