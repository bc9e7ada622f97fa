package stack

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// Broker is where a Kafka broker listens. With ONCEWARD_TEST_KAFKA only Addr is known; a test of SASL or TLS then takes
// the broker of NewKafka.
type Broker struct {
	Addr    string // host:port, plain text
	SASL    string // host:port, PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
	SASLTLS string // host:port, the same over TLS
	TLS     string // host:port, TLS without authentication

	User, Password string         // of the SASL listeners
	CAFile         string         // PEM file of the CA that signed the server's certificate
	CA             *x509.CertPool // the same CA
}

// KafkaServer is a broker of one test's own. Kill, Stop and Start keep its ports and its data.
type KafkaServer struct {
	controlled

	broker Broker
}

// Addr is the plain-text listener, host:port.
func (k *KafkaServer) Addr() string { return k.broker.Addr }

// Broker tells all listeners.
func (k *KafkaServer) Broker() Broker { return k.broker }

// kafkaBroker is a broker, whoever runs it.
type kafkaBroker struct {
	Broker

	back backend // nil: somebody else's broker
	what string  // "Apache Kafka 4.4.0 (native)"
}

var sharedKafka shared[*kafkaBroker]

// Kafka returns the shared broker, one node of Apache Kafka in KRaft mode. It creates no topics by itself: see Topic.
func Kafka(t testing.TB) Broker {
	t.Helper()
	return sharedKafka.get(t, func(ctx context.Context) (*kafkaBroker, error) {
		k, err := findKafka(ctx)
		if err != nil {
			return nil, err
		}
		announcef("%s", k.what)
		return k, nil
	}).Broker
}

// NewKafka starts a broker for this test alone, on a quick session towards its controller: after Kill, Start takes about 5 s.
// Start returns once all topics are served again, so that what a test itself sends then is taken. It stops when the test ends.
func NewKafka(t testing.TB) *KafkaServer {
	t.Helper()
	k, err := startKafka(context.Background())
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	t.Cleanup(func() {
		if err := k.back.discard(context.Background()); err != nil {
			t.Errorf("stack: discard %s: %v", k.what, err)
		}
	})
	return &KafkaServer{
		controlled: controlled{t: t, name: k.what, back: k.back, probe: k.servesTopics},
		broker:     k.Broker,
	}
}

// findKafka takes the broker that the environment names, or starts the shared one.
func findKafka(ctx context.Context) (*kafkaBroker, error) {
	if given := os.Getenv("ONCEWARD_TEST_KAFKA"); given != "" {
		k := &kafkaBroker{Broker: Broker{Addr: given}, what: "Apache Kafka at " + given + " (ONCEWARD_TEST_KAFKA)"}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := poll(ctx, k.serves); err != nil {
			return nil, fmt.Errorf("ONCEWARD_TEST_KAFKA names a broker that does not answer: %w", err)
		}
		return k, nil
	}
	k, err := startKafka(ctx)
	if err != nil {
		return nil, err
	}
	held.atExit(k.back.discard)
	return k, nil
}

// startKafka starts a new broker and waits until it serves.
func startKafka(ctx context.Context) (*kafkaBroker, error) {
	from, err := pick(ctx, "Apache Kafka", kafkaImage)
	if err != nil {
		return nil, err
	}
	var k *kafkaBroker
	switch from {
	case docker:
		k, err = dockerKafka()
	case native:
		k, err = nativeKafka(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := launch(ctx, k.what, k.back, k.serves); err != nil {
		return nil, errors.Join(err, k.back.discard(ctx))
	}
	return k, nil
}

// serves is nil once the broker answers, knows itself and coordinates groups: the coordinator's own topic is made by the
// first question for it, and a broker that just came back refuses groups for a moment.
func (k *kafkaBroker) serves(ctx context.Context) error {
	client, done := kafkaClient(k.Addr)
	defer done()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	if err != nil {
		return fmt.Errorf("ask for metadata: %w", err)
	}
	if len(meta.Brokers) == 0 {
		return errors.New("the cluster has no broker yet")
	}
	found, err := client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: "onceward-stack", KeyType: kafka.CoordinatorKeyTypeConsumer})
	if err != nil {
		return fmt.Errorf("ask for a group's coordinator: %w", err)
	}
	if found.Error != nil {
		return fmt.Errorf("no coordinator for groups yet: %w", found.Error)
	}
	_, err = client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: "onceward-stack", Topics: map[string][]int{}})
	if err != nil {
		return fmt.Errorf("the coordinator of groups is not ready: %w", err)
	}
	return nil
}

// servesTopics is nil once the broker serves and leads every partition of the topics it has: one that came back answers for a
// moment before it does.
func (k *kafkaBroker) servesTopics(ctx context.Context) error {
	if err := k.serves(ctx); err != nil {
		return err
	}
	client, done := kafkaClient(k.Addr)
	defer done()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return fmt.Errorf("ask for topics: %w", err)
	}
	for _, topic := range meta.Topics {
		if topic.Internal {
			continue
		}
		if err := topicServes(ctx, k.Addr, topic.Name, len(topic.Partitions)); err != nil {
			return fmt.Errorf("topic %s: %w", topic.Name, err)
		}
	}
	return nil
}

// kafkaClient is a client whose connections and goroutines end with done.
func kafkaClient(addr string) (client *kafka.Client, done func()) {
	transport := &kafka.Transport{DialTimeout: 5 * time.Second}
	return &kafka.Client{Addr: kafka.TCP(addr), Timeout: 10 * time.Second, Transport: transport}, transport.CloseIdleConnections
}

// javaCommand starts Java so that a broker is up soon: no second compiler tier, one garbage collector thread.
func javaCommand(classPath, logging string) []string {
	return []string{
		"java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dlog4j2.configurationFile=" + logging, "-cp", classPath,
	}
}

func brokerAt(p kafkaPorts, caFile string, certs *certificates) Broker {
	return Broker{
		Addr: loopback(p.plain), SASL: loopback(p.sasl), SASLTLS: loopback(p.saslTLS), TLS: loopback(p.tls),
		User: kafkaUser, Password: kafkaPassword,
		CAFile: caFile, CA: certs.pool,
	}
}
