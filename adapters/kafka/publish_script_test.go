package kafka

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/onceward/onceward/outbox"
)

// script is a cluster that answers as a test says. Partition p of a topic is led by broker p mod the number of brokers.
type script struct {
	t         *testing.T
	listeners []net.Listener
	ended     context.Context
	serving   sync.WaitGroup

	mu         sync.Mutex
	partitions map[string]int
	topicError map[string]kafka.Error
	reply      func(scripted) produce.ResponsePartition // nil: all is well
	request    func(broker int) bool                    // before an answer; false: hang up instead
	throttle   int32
	batches    []scripted // as they came
	asked      int        // for metadata with topics
}

// scripted is a batch that a scripted broker was sent.
type scripted struct {
	broker    int
	topic     string
	partition int
	ids       []string
	acks      int16
	timeout   time.Duration
}

func newScript(t *testing.T, brokers int) *script {
	t.Helper()
	ended, end := context.WithCancel(context.Background())
	s := &script{t: t, ended: ended, partitions: map[string]int{}, topicError: map[string]kafka.Error{}}
	for i := range brokers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.listeners = append(s.listeners, l)
		s.serving.Go(func() { s.serve(i, l) })
	}
	t.Cleanup(func() {
		end()
		for _, l := range s.listeners {
			l.Close()
		}
		s.serving.Wait()
	})
	return s
}

func (s *script) serve(broker int, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.serving.Go(func() {
			defer c.Close()
			defer context.AfterFunc(s.ended, func() { c.Close() })()
			for {
				version, id, _, request, err := protocol.ReadRequest(c)
				if err != nil {
					return
				}
				answer := s.answer(broker, request)
				if answer == nil || protocol.WriteResponse(c, version, id, answer) != nil {
					return
				}
			}
		})
	}
}

func (s *script) answer(broker int, request protocol.Message) protocol.Message {
	switch r := request.(type) {
	case *apiversions.Request:
		return &apiversions.Response{ApiKeys: []apiversions.ApiKeyResponse{
			{ApiKey: int16(protocol.Produce), MinVersion: 3, MaxVersion: 8},
			{ApiKey: int16(protocol.Metadata), MinVersion: 1, MaxVersion: 8},
			{ApiKey: int16(protocol.ApiVersions), MaxVersion: 2},
		}}
	case *metadata.Request:
		return s.describe(r.TopicNames)
	case *produce.Request:
		return s.write(broker, r)
	}
	s.t.Errorf("an unexpected request: %T", request)
	return nil
}

func (s *script) describe(topics []string) *metadata.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(topics) > 0 {
		s.asked++
	}
	answer := &metadata.Response{}
	for i, l := range s.listeners {
		host, port, _ := net.SplitHostPort(l.Addr().String())
		n, _ := strconv.ParseInt(port, 10, 32)
		answer.Brokers = append(answer.Brokers, metadata.ResponseBroker{NodeID: int32(i), Host: host, Port: int32(n)})
	}
	for _, name := range topics {
		topic := metadata.ResponseTopic{Name: name, ErrorCode: int16(s.topicError[name])}
		if topic.ErrorCode == 0 && s.partitions[name] == 0 {
			topic.ErrorCode = int16(kafka.UnknownTopicOrPartition)
		}
		for p := range s.partitions[name] {
			topic.Partitions = append(topic.Partitions, metadata.ResponsePartition{
				PartitionIndex: int32(p), LeaderID: int32(p % len(s.listeners)),
			})
		}
		answer.Topics = append(answer.Topics, topic)
	}
	return answer
}

func (s *script) write(broker int, r *produce.Request) protocol.Message {
	s.mu.Lock()
	proceed := s.request
	s.mu.Unlock()
	if proceed != nil && !proceed(broker) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &produce.Response{ThrottleTimeMs: s.throttle}
	for _, topic := range r.Topics {
		t := produce.ResponseTopic{Topic: topic.Topic}
		for _, p := range topic.Partitions {
			b := scripted{
				broker: broker, topic: topic.Topic, partition: int(p.Partition),
				acks: r.Acks, timeout: time.Duration(r.Timeout) * time.Millisecond,
			}
			for {
				record, err := p.RecordSet.Records.ReadRecord()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					s.t.Errorf("a record that can't be read: %v", err)
					return nil
				}
				b.ids = append(b.ids, string(record.Headers[0].Value))
			}
			s.batches = append(s.batches, b)
			reply := produce.ResponsePartition{}
			if s.reply != nil {
				reply = s.reply(b)
			}
			reply.Partition = p.Partition
			t.Partitions = append(t.Partitions, reply)
		}
		answer.Topics = append(answer.Topics, t)
	}
	// The order is the broker's own business.
	slices.Reverse(answer.Topics)
	return answer
}

// change changes the script between or during calls.
func (s *script) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// sent returns the ids of each batch that came for a partition of "orders", in order.
func (s *script) sent(partition int) [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out [][]string
	for _, b := range s.batches {
		if b.topic == "orders" && b.partition == partition {
			out = append(out, b.ids)
		}
	}
	return out
}

// publisher publishes to the script.
func (s *script) publisher(t *testing.T, change ...func(*PublisherConfig)) *Publisher {
	t.Helper()
	config := PublisherConfig{Brokers: []string{s.listeners[0].Addr().String()}, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&config)
	}
	p := NewPublisher(config)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// code is a reply with an error for batches that hold the event.
func code(c kafka.Error, id string) func(scripted) produce.ResponsePartition {
	return func(b scripted) produce.ResponsePartition {
		if slices.Contains(b.ids, id) {
			return produce.ResponsePartition{ErrorCode: int16(c)}
		}
		return produce.ResponsePartition{}
	}
}

// event makes an event. An empty key is none.
func event(topic, key, id string) outbox.Event {
	e := outbox.Event{Message: outbox.Message{ID: id, Topic: topic, Payload: []byte("payload")}, CreatedAt: time.UnixMilli(1_750_000_000_000)}
	if key != "" {
		e.Key = []byte(key)
	}
	return e
}
