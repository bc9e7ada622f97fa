package stack_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/onceward/onceward/integration/stack"
)

// produce writes one record to partition 0; fetch reads the one at an offset. Both go over one connection of the dialer's.
func produce(ctx context.Context, d *kafka.Dialer, addr, topic, value string) error {
	conn, err := d.DialLeader(ctx, "tcp", addr, topic, 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.WriteMessages(kafka.Message{Value: []byte(value)})
	return err
}

func fetch(ctx context.Context, d *kafka.Dialer, addr, topic string, offset int64) (string, error) {
	conn, err := d.DialLeader(ctx, "tcp", addr, topic, 0)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Seek(offset, kafka.SeekAbsolute); err != nil {
		return "", err
	}
	m, err := conn.ReadMessage(1 << 20)
	return string(m.Value), err
}

func TestKafkaServesEveryListener(t *testing.T) {
	t.Parallel()
	server := stack.NewKafka(t)
	b := server.Broker()
	topic := stack.Topic(t, server.Addr(), 1)
	if _, err := os.Stat(b.CAFile); err != nil {
		t.Error(err)
	}

	scramMechanism := func(a scram.Algorithm) sasl.Mechanism {
		m, err := scram.Mechanism(a, b.User, b.Password)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Mechanism{Username: b.User, Password: b.Password},
		"SCRAM-SHA-256": scramMechanism(scram.SHA256),
		"SCRAM-SHA-512": scramMechanism(scram.SHA512),
	}
	type listener struct {
		name   string
		addr   string
		dialer *kafka.Dialer
	}
	secure := func() *tls.Config { return &tls.Config{RootCAs: b.CA, MinVersion: tls.VersionTLS12} }
	listeners := []listener{
		{"plain text", b.Addr, &kafka.Dialer{}},
		{"TLS", b.TLS, &kafka.Dialer{TLS: secure()}},
	}
	for name, m := range mechanisms {
		listeners = append(listeners,
			listener{name, b.SASL, &kafka.Dialer{SASLMechanism: m}},
			listener{name + " over TLS", b.SASLTLS, &kafka.Dialer{SASLMechanism: m, TLS: secure()}})
	}
	for i, l := range listeners {
		l.dialer.Timeout = 10 * time.Second
		if err := produce(t.Context(), l.dialer, l.addr, topic, l.name); err != nil {
			t.Fatalf("produce by %s: %v", l.name, err)
		}
		if got, err := fetch(t.Context(), l.dialer, l.addr, topic, int64(i)); err != nil || got != l.name {
			t.Errorf("fetch by %s: %q, %v", l.name, got, err)
		}
	}

	wrong := &kafka.Dialer{Timeout: 10 * time.Second, SASLMechanism: plain.Mechanism{Username: b.User, Password: "wrong"}}
	if err := produce(t.Context(), wrong, b.SASL, topic, ""); err == nil {
		t.Error("the SASL listener let a wrong password in")
	}
}

func TestKafkaKeepsPortsRecordsAndLeadersOverKillAndStop(t *testing.T) {
	t.Parallel()
	const partitions = 64 // which a broker that came back leads one after the other
	server := stack.NewKafka(t)
	topic := stack.Topic(t, server.Addr(), partitions)
	dialer := &kafka.Dialer{Timeout: 10 * time.Second}
	for i, end := range []struct {
		name string
		do   func()
	}{{"Kill", server.Kill}, {"Stop", server.Stop}} {
		if err := produce(t.Context(), dialer, server.Addr(), topic, end.name); err != nil {
			t.Fatal(err)
		}
		end.do()
		if err := produce(t.Context(), dialer, server.Addr(), topic, ""); err == nil {
			t.Errorf("after %s the broker still answers", end.name)
		}
		begin := time.Now()
		server.Start()
		t.Logf("back %v after %s", time.Since(begin).Round(time.Millisecond), end.name)
		if err := leads(t.Context(), server.Addr(), topic, partitions); err != nil {
			t.Errorf("right after %s and Start: %v", end.name, err)
		}
		if got, err := fetch(t.Context(), dialer, server.Addr(), topic, int64(i)); err != nil || got != end.name {
			t.Errorf("after %s and Start: record %q, %v", end.name, got, err)
		}
	}
}

// leads is nil if every partition takes a record.
func leads(ctx context.Context, addr, topic string, partitions int) error {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(addr), Timeout: 10 * time.Second, Transport: transport}
	for p := 1; p < partitions; p++ {
		response, err := client.Produce(ctx, &kafka.ProduceRequest{
			Topic: topic, Partition: p, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("v"))}),
		})
		if err == nil {
			err = response.Error
		}
		if err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
	}
	return nil
}

func TestTopicsAreUsableAtOnceAndGoWithTheirTest(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	var topic string
	t.Run("inner", func(t *testing.T) {
		topic = stack.Topic(t, broker.Addr, 3, "cleanup.policy=compact", "segment.ms=1000")
		dialer := &kafka.Dialer{Timeout: 10 * time.Second}
		for i := range 3 {
			conn, err := dialer.DialLeader(t.Context(), "tcp", broker.Addr, topic, i)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.WriteMessages(kafka.Message{Key: []byte("k"), Value: fmt.Append(nil, i)}); err != nil {
				t.Errorf("first write to partition %d: %v", i, err)
			}
			_ = conn.Close()
		}
	})
	conn, err := kafka.DialContext(t.Context(), "tcp", broker.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	deadline := time.Now().Add(10 * time.Second)
	for {
		partitions, err := conn.ReadPartitions()
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, p := range partitions {
			if p.Topic == topic {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("topic %s is still there after its test", topic)
		}
	}
}

func TestKafkaLibsHoldBrokerAndClients(t *testing.T) {
	t.Parallel()
	libs := stack.KafkaLibs(t)
	for _, jar := range []string{"kafka_2.13-*.jar", "kafka-clients-*.jar"} {
		if found, err := filepath.Glob(filepath.Join(libs, jar)); err != nil || len(found) != 1 {
			t.Errorf("%s in %s: %v, %v, want one", jar, libs, found, err)
		}
	}
}
