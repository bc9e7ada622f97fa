package kafka_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// K17: what keeps a consumer from starting is named by its real cause, each by its own words.
func TestK17StartNamesTheRealCause(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 1)
	for name, c := range closedWays(t, broker) {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			config := quick(c.addr, topic)
			config.TLS, config.SASL = c.tls, c.sasl
			began := time.Now()
			err := consume(t, config, &recorder{}).result()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), wrongPassword) {
				t.Errorf("the password is in the error: %v", err)
			}
			if took := time.Since(began); took > 22*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// K17: a topic that does not exist is the cause by its name.
func TestK17StartNamesTheMissingTopic(t *testing.T) {
	t.Parallel()
	began := time.Now()
	err := consume(t, quick(stack.Kafka(t).Addr, "no-such-topic"), &recorder{}).result()
	if want := `topic "no-such-topic" does not exist`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want %q", err, want)
	}
	if took := time.Since(began); took > 22*time.Second {
		t.Errorf("took %v", took)
	}
}

// K17: TLS and SASL by kafka-go's own types, on all listeners of a real broker.
func TestK17ListenersWithTLSAndSASL(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 1)
	produce(t, client(t, broker.Addr), topic, 0, numbered(0, 3)...)
	for name, c := range waysIn(t, broker) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := quick(c.addr, topic)
			config.Group, config.TLS, config.SASL = name, c.tls, c.sasl
			processor := &recorder{}
			r := consume(t, config, processor)
			eventually(t, "the messages", func() bool { return processor.distinct() == 3 })
			r.stop()
		})
	}
}

// K17: a broker that is killed and comes back is used again at once, without anybody's help.
func TestK17BrokerKilledAndBack(t *testing.T) {
	t.Parallel()
	server := stack.NewKafka(t)
	topic := stack.Topic(t, server.Addr(), 2)
	produce(t, client(t, server.Addr()), topic, 0, numbered(0, 10)...)
	config := quick(server.Addr(), topic)
	config.SessionTimeout = time.Minute // our old member, which kafka-go forgets, must not hold up the group that long
	processor := &recorder{}
	r := consume(t, config, processor)
	eventually(t, "the first messages", func() bool { return processor.distinct() == 10 })

	server.Kill()
	r.await(kafka.EventRetry)
	server.Start()
	produce(t, client(t, server.Addr()), topic, 1, numbered(10, 20)...)
	began := time.Now()
	eventually(t, "the messages after the restart", func() bool { return processor.distinct() == 20 })
	t.Logf("read %v after the broker was back", time.Since(began))
	r.await(kafka.EventRecovered)
	r.stop()
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// K7: a peer that accepts and says nothing costs a bounded time.
func TestK7SilentPeerAtTheStart(t *testing.T) {
	t.Parallel()
	addr := silentAfter(t, "", 0)
	began := time.Now()
	err := consume(t, quick(addr), &recorder{}).result()
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 22*time.Second {
		t.Errorf("took %v", took)
	}
}

// K7: SASL has no deadline of its own in kafka-go: a peer that goes silent after the first answer must not hang us.
func TestK7PeerThatGoesSilentInSASL(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 1)
	config := quick(silentAfter(t, broker.SASL, 1), topic)
	config.SASL = plain.Mechanism{Username: broker.User, Password: broker.Password}
	began := time.Now()
	err := consume(t, config, &recorder{}).result()
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 22*time.Second {
		t.Errorf("took %v", took)
	}
}

// silentAfter listens and passes on that many answers of the server at addr on each connection; then it swallows everything.
func silentAfter(t *testing.T, addr string, answers int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		l.Close()
	})
	go func() {
		for {
			front, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { front.Close() })
			go func() {
				if answers == 0 {
					_, _ = io.Copy(io.Discard, front)
					return
				}
				back, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				context.AfterFunc(ctx, func() { back.Close() })
				go func() { _, _ = io.Copy(back, front) }()
				for left, buffer := answers, make([]byte, 64<<10); left > 0; left-- {
					n, err := back.Read(buffer) // an answer of ApiVersions is small: one read
					if err != nil {
						return
					}
					if _, err := front.Write(buffer[:n]); err != nil {
						return
					}
				}
				_, _ = io.Copy(io.Discard, back)
			}()
		}
	}()
	return l.Addr().String()
}

// K7, X6: a broker that keeps its connections and stops answering can't hang the shutdown: commits, leaving and closing
// all have deadlines.
func TestK7SilentBrokerCantHangTheShutdown(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 2)
	produce(t, client(t, addr), "orders", 0, numbered(0, 1)...)
	var silent atomic.Bool
	cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, nil, silent.Load()
	})
	release := make(chan struct{})
	var calls atomic.Int32
	r := consume(t, quick(addr), &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		calls.Add(1)
		<-release
		return processed, nil
	}})
	eventually(t, "the handler", func() bool { return calls.Load() == 1 })
	silent.Store(true)
	r.cancel()
	close(release) // settles with nobody to commit to
	began := time.Now()
	if err := r.result(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("took %v", took)
	}
}
