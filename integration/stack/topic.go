package stack

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// topicDeadline bounds the wait for a new topic, on a broker that may just have been restarted.
const topicDeadline = 30 * time.Second

// Topic creates a topic with a unique name and waits until every partition's leader answers. Each config is "name=value", as
// in "cleanup.policy=compact". The topic is deleted when the test ends, if the broker still answers.
func Topic(t testing.TB, addr string, partitions int, configs ...string) string {
	t.Helper()
	name := uniqueName(t, 120)
	CreateTopic(t, addr, name, partitions, configs...)
	return name
}

// CreateTopic is Topic for a program that has chosen the name itself. On a broker that others share it may be taken.
func CreateTopic(t testing.TB, addr, name string, partitions int, configs ...string) {
	t.Helper()
	// The default of the broker: one copy on a single node, what its owner wants on a cluster of ONCEWARD_TEST_KAFKA.
	topic := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: -1}
	for _, c := range configs {
		key, value, ok := strings.Cut(c, "=")
		if !ok {
			t.Fatalf("stack: config %q of a topic is not name=value", c)
		}
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: value})
	}

	client, done := kafkaClient(addr)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), topicDeadline)
	defer cancel()
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err == nil {
		err = created.Errors[name]
	}
	if err != nil {
		t.Fatalf("stack: create topic %s: %v", name, err)
	}
	t.Cleanup(func() { deleteTopic(addr, name) })
	if err := poll(ctx, func(ctx context.Context) error { return topicServes(ctx, addr, name, partitions) }); err != nil {
		t.Fatalf("stack: topic %s: %v", name, err)
	}
}

// topicServes asks the leaders themselves: metadata names a leader a moment before it serves. Each try uses a client of
// its own, since kafka-go's transport remembers a topic's absence.
func topicServes(ctx context.Context, addr, name string, partitions int) error {
	client, done := kafkaClient(addr)
	defer done()
	ask := make([]kafka.OffsetRequest, partitions)
	for p := range ask {
		ask[p] = kafka.FirstOffsetOf(p)
	}
	got, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{name: ask}})
	if err != nil {
		return fmt.Errorf("ask for offsets: %w", err)
	}
	if n := len(got.Topics[name]); n != partitions {
		return fmt.Errorf("%d of %d partitions answered", n, partitions)
	}
	for _, p := range got.Topics[name] {
		if p.Error != nil {
			return fmt.Errorf("partition %d: %w", p.Partition, p.Error)
		}
	}
	return nil
}

// deleteTopic is tidiness on a shared broker: one that is gone by now takes its topics along.
func deleteTopic(addr, name string) {
	client, done := kafkaClient(addr)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, _ = client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
}
