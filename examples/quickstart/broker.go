package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
)

// partitions of the topic: enough that one consumer works on several at once.
const partitions = 3

// broker is the Kafka the orders travel through.
type broker struct {
	address string
	// session is how long the broker waits for a killed consumer before it
	// gives the partitions to the next one.
	session time.Duration
	client  *kafka.Client
	fake    *kfake.Cluster // nil: a real broker
}

// openBroker connects to the broker at address, or starts one in this process
// if address is empty. The latter is a fake that speaks the real protocol.
func openBroker(ctx context.Context, address string) (*broker, error) {
	b := &broker{address: address}
	if address == "" {
		b.session = time.Second
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(b.session))
		if err != nil {
			return nil, fmt.Errorf("starting the in-process Kafka: %w", err)
		}
		b.fake, b.address = fake, fake.ListenAddrs()[0]
	} else {
		b.session = 6 * time.Second // the least that brokers accept by default
		if err := answersAsKafka(ctx, address); err != nil {
			return nil, err
		}
	}
	b.client = &kafka.Client{Addr: kafka.TCP(b.address), Timeout: 10 * time.Second}
	return b, nil
}

// answersAsKafka tells the reasons apart for which a broker can't be used: the
// calls that follow report all of them as a missing topic.
func answersAsKafka(ctx context.Context, address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return fmt.Errorf("-kafka %q is not an address: give HOST:PORT of one broker, such as localhost:9092", address)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := (&kafka.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("-kafka %s does not answer: %w (is the broker running, and is this its address as seen from here?)", address, err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("-kafka %s: %w", address, err)
	}
	if _, err := conn.ApiVersions(); err != nil {
		return fmt.Errorf("-kafka %s accepts connections but does not speak Kafka: %w (give a plain-text listener, without TLS or SASL)", address, err)
	}
	return nil
}

func (b *broker) createTopic(ctx context.Context, topic string) error {
	response, err := b.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: partitions, ReplicationFactor: -1, // -1: the broker's default
	}}})
	if err == nil {
		err = response.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	return b.waitForTopic(ctx, topic)
}

// waitForTopic returns when every partition can be used: a real broker answers
// CreateTopics a moment before that.
func (b *broker) waitForTopic(ctx context.Context, topic string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// Each look is a new client's: a kafka-go transport remembers for a
		// while that a topic was missing.
		transport := &kafka.Transport{}
		look := broker{client: &kafka.Client{Addr: b.client.Addr, Timeout: b.client.Timeout, Transport: transport}}
		_, err := look.ends(ctx, topic)
		transport.CloseIdleConnections()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for topic %s: %w", topic, err)
		}
	}
}

// ends returns the offset behind the last message of each partition.
func (b *broker) ends(ctx context.Context, topic string) (map[int]int64, error) {
	request := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	for p := range partitions {
		request.Topics[topic] = append(request.Topics[topic], kafka.LastOffsetOf(p))
	}
	response, err := b.client.ListOffsets(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("reading the end of topic %s: %w", topic, err)
	}
	if len(response.Topics[topic]) != partitions {
		return nil, fmt.Errorf("reading the end of topic %s: %d of %d partitions answered", topic, len(response.Topics[topic]), partitions)
	}
	ends := map[int]int64{}
	for _, p := range response.Topics[topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("reading the end of topic %s, partition %d: %w", topic, p.Partition, p.Error)
		}
		ends[p.Partition] = p.LastOffset
	}
	return ends, nil
}

// drained reports whether the group has committed every offset up to ends: the
// broker's own word for "nothing is left to deliver".
func (b *broker) drained(ctx context.Context, group, topic string, ends map[int]int64) (bool, error) {
	request := &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{}}
	for p := range ends {
		request.Topics[topic] = append(request.Topics[topic], p)
	}
	response, err := b.client.OffsetFetch(ctx, request)
	if err == nil {
		err = response.Error
	}
	if errors.Is(err, kafka.GroupIdNotFound) {
		return false, nil // the first consumer has not joined yet
	}
	if err != nil {
		return false, fmt.Errorf("reading the committed offsets of group %s: %w", group, err)
	}
	committed := 0
	for _, p := range response.Topics[topic] {
		if p.Error == nil && p.CommittedOffset >= ends[p.Partition] {
			committed++
		}
	}
	return committed == len(ends), nil
}

// close ends the in-process broker; from a real one it removes topic and group,
// also when ctx has ended.
func (b *broker) close(ctx context.Context, topic, group string) error {
	if b.fake != nil {
		b.fake.Close()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var failed []error
	if response, err := b.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}}); err != nil {
		failed = append(failed, err)
	} else if err := response.Errors[topic]; err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
		failed = append(failed, err)
	}
	if response, err := b.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}}); err != nil {
		failed = append(failed, err)
	} else if err := response.Errors[group]; err != nil && !errors.Is(err, kafka.GroupIdNotFound) {
		failed = append(failed, err)
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("removing topic %s and group %s from %s (please do it by hand): %w", topic, group, b.address, err)
	}
	return nil
}
