package kafka_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
)

// K11: keys go to the partition that Java's producer takes, seen on the topic.
func TestK11KeysGoWhereJavaSendsThem(t *testing.T) {
	t.Parallel()
	const partitions = 13
	broker := stack.Kafka(t)
	topic := stack.Topic(t, broker.Addr, partitions)
	random := rand.New(rand.NewPCG(1, 2))
	var events []outbox.Event
	var lines []string
	for i := range 5000 {
		key := make([]byte, 1+i%40) // an empty line would be no key
		for j := range key {
			key[j] = byte(random.Uint32())
		}
		e := event(topic, string(key), strconv.Itoa(i))
		events, lines = append(events, e), append(lines, hex.EncodeToString(key))
	}
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	java := runJava(t, "Partitions", file, strconv.Itoa(partitions))
	acknowledged(t, publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}}).Publish(t.Context(), events))
	records := readAll(t, broker.Addr, topic, partitions)
	if len(records) != len(events) || len(java) != len(events) {
		t.Fatalf("%d records, %d lines of Java, want %d", len(records), len(java), len(events))
	}
	for _, r := range records {
		n, err := strconv.Atoi(r.id())
		if err != nil {
			t.Fatal(err)
		}
		if java[n] != strconv.Itoa(r.partition) {
			t.Errorf("key %x is in partition %d, Java's would be %s", r.key, r.partition, java[n])
		}
	}
}

// K17: what keeps a publisher from its brokers is named by its real cause, by Check and in the results, and is retriable.
func TestK17PublisherNamesTheRealCause(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 1)
	ways := closedWays(t, broker)
	simple := plain.Mechanism{Username: broker.User, Password: broker.Password}
	ways["silent"] = closedWay{wayIn{addr: silentAfter(t, "", 0)}, "does not answer"}
	ways["silent in SASL"] = closedWay{wayIn{addr: silentAfter(t, broker.SASL, 1), sasl: simple}, "does not answer"} // K7
	for name, c := range ways {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			p := publisher(t, kafka.PublisherConfig{Brokers: []string{c.addr}, TLS: c.tls, SASL: c.sasl})
			began := time.Now()
			check := p.Check(t.Context())
			result := p.Publish(t.Context(), []outbox.Event{event(topic, "key", "1")})[0]
			for what, err := range map[string]error{"Check": check, "Publish": result} {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: error %q, want %q", what, err, c.want)
				}
				if err != nil && strings.Contains(err.Error(), wrongPassword) {
					t.Errorf("%s: the password is in the error: %v", what, err)
				}
			}
			if !errors.Is(result, outbox.ErrUnavailable) {
				t.Errorf("not retriable: %v", result)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// K17: TLS and SASL by kafka-go's own types, on all listeners of a real broker.
func TestK17PublisherOnListenersWithTLSAndSASL(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 3)
	for name, c := range waysIn(t, broker) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := publisher(t, kafka.PublisherConfig{Brokers: []string{c.addr}, TLS: c.tls, SASL: c.sasl})
			if err := p.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			acknowledged(t, p.Publish(t.Context(), []outbox.Event{event(topic, "a", "1"), event(topic, "b", "2"), event(topic, "", "3")}))
		})
	}
}

// K17, K12: a broker that is killed and comes back is used again at once, by the first call, also on connections that many
// calls at once had left idle.
func TestK17PublishesAgainOnceTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	server := stack.NewKafka(t)
	topic := stack.Topic(t, server.Addr(), 4)
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{server.Addr()}})
	many := make(chan []error)
	for i := range 16 {
		go func() {
			many <- p.Publish(t.Context(), []outbox.Event{event(topic, "key"+strconv.Itoa(i), "before"+strconv.Itoa(i))})
		}()
	}
	for range 16 {
		acknowledged(t, <-many)
	}

	server.Kill()
	events := []outbox.Event{event(topic, "a", "a1"), event(topic, "a", "a2"), event(topic, "b", "b1")}
	for range 3 { // on a dead connection, and on none
		results := p.Publish(t.Context(), events)
		if !errors.Is(results[0], outbox.ErrUnavailable) || !errors.Is(results[1], outbox.ErrBehind) || !errors.Is(results[2], outbox.ErrUnavailable) {
			t.Errorf("results while it is down: %v", results)
		}
	}
	server.Start()
	began := time.Now()
	eventually(t, "a leader for every partition", func() bool {
		return p.Publish(t.Context(), []outbox.Event{event(topic, "a", "probe")})[0] == nil
	})
	acknowledged(t, p.Publish(t.Context(), events))
	t.Logf("published %v after the broker was back", time.Since(began))
}

// K12, K17: an unknown topic is a plain failure that names it; created later, it is found by the next call. So are partitions
// that are added; and that a topic was deleted is said again.
func TestK12TopicCreatedLaterIsFound(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	topic := fmt.Sprintf("later-%d", time.Now().UnixNano())
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}})
	publish := func(key string) error { return p.Publish(t.Context(), []outbox.Event{event(topic, key, "of "+key)})[0] }
	err := publish("a")
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("topic %q does not exist", topic)) {
		t.Errorf("error %v", err)
	}
	if errors.Is(err, outbox.ErrUnavailable) || errors.Is(err, outbox.ErrPermanent) {
		t.Errorf("an unknown topic must spend attempts: %v", err)
	}
	stack.CreateTopic(t, broker.Addr, topic, 1)
	if err := publish("a"); err != nil {
		t.Errorf("after its creation: %v", err)
	}

	created, err := client(t, broker.Addr).CreatePartitions(t.Context(), &kafkago.CreatePartitionsRequest{
		Topics: []kafkago.TopicPartitionsConfig{{Name: topic, Count: 8}},
	})
	if err == nil {
		err = created.Errors[topic]
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually(t, "records in the new partitions", func() bool {
		n++
		if err := publish(strconv.Itoa(n)); err != nil && !errors.Is(err, outbox.ErrUnavailable) {
			t.Fatal(err)
		}
		found, err := client(t, broker.Addr).ListOffsets(t.Context(), &kafkago.ListOffsetsRequest{
			Topics: map[string][]kafkago.OffsetRequest{topic: {kafkago.LastOffsetOf(7)}},
		})
		return err == nil && len(found.Topics[topic]) == 1 && found.Topics[topic][0].LastOffset > 0
	})

	if _, err := client(t, broker.Addr).DeleteTopics(t.Context(), &kafkago.DeleteTopicsRequest{Topics: []string{topic}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the topic's absence", func() bool {
		err := publish("a")
		return err != nil && !errors.Is(err, outbox.ErrUnavailable) && strings.Contains(err.Error(), "does not exist")
	})
}

// K12: Apache Kafka names the records that it refuses, as those without a key in a compacted topic: they are never accepted, and
// those around them are published, in order.
func TestK12RecordsThatARealBrokerRefuses(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	compacted := stack.Topic(t, broker.Addr, 1, "cleanup.policy=compact")
	p := publisher(t, kafka.PublisherConfig{Brokers: []string{broker.Addr}})
	results := p.Publish(t.Context(), []outbox.Event{
		event(compacted, "a", "1"), event(compacted, "", "2"), event(compacted, "b", "3"), event(compacted, "", "4"), event(compacted, "c", "5"),
	})
	for i, want := range []error{nil, outbox.ErrPermanent, nil, outbox.ErrPermanent, nil} {
		if !errors.Is(results[i], want) {
			t.Errorf("event %d: %v, want %v", i+1, results[i], want)
		}
	}
	if results[1] != nil && !strings.Contains(results[1].Error(), "without key") {
		t.Errorf("the broker's reason is missing: %v", results[1])
	}
	var ids []string
	for _, r := range readAll(t, broker.Addr, compacted, 1) {
		ids = append(ids, r.id())
	}
	if fmt.Sprint(ids) != "[1 3 5]" {
		t.Errorf("the topic has %v", ids)
	}
}

// X6: Close leaves no goroutine and no connection behind, also after an outage. (Not in parallel: others have goroutines.)
func TestX6PublisherLeavesNothingBehind(t *testing.T) {
	for name, outage := range map[string]bool{"quiet": false, "outage": true} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			cluster, addr := fakeCluster(t, 3)
			p := publisher(t, kafka.PublisherConfig{Brokers: []string{addr}})
			acknowledged(t, p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1"), event("orders", "", "2")}))
			if outage {
				cluster.Close()
				if err := p.Publish(t.Context(), []outbox.Event{event("orders", "a", "1")})[0]; !errors.Is(err, outbox.ErrUnavailable) {
					t.Errorf("error %v", err)
				}
			}
		})
	}
}
