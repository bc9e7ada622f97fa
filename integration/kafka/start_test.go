package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
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
	trusted := &tls.Config{RootCAs: broker.CA}
	password := func(p string) sasl.Mechanism { return plain.Mechanism{Username: broker.User, Password: p} }
	scramWrong, err := scram.Mechanism(scram.SHA256, broker.User, "wrong-secret")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		addr, topic string
		tls         *tls.Config
		sasl        sasl.Mechanism
		want        string
	}{
		"refused":        {addr: closedPort(t), want: "nothing listens there"},
		"unknown host":   {addr: "nowhere.invalid:9092", want: "host name is unknown"},
		"unknown topic":  {addr: broker.Addr, topic: "no-such-topic", want: `topic "no-such-topic" does not exist`},
		"password":       {addr: broker.SASL, sasl: password("wrong-secret"), want: "refused the user or the password"},
		"scram password": {addr: broker.SASL, sasl: scramWrong, want: "refused the user or the password"},
		"TLS password":   {addr: broker.SASLTLS, tls: trusted, sasl: password("wrong-secret"), want: "refused the user or the password"},
		"no SASL":        {addr: broker.SASL, want: "may want TLS or SASL"},
		"no TLS":         {addr: broker.TLS, want: "may want TLS or SASL"},
		"unasked TLS":    {addr: broker.Addr, tls: trusted, want: "TLS"},
		"unknown CA":     {addr: broker.TLS, tls: &tls.Config{RootCAs: x509.NewCertPool()}, want: "certificate is not trusted"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			config := quick(c.addr, topic)
			if c.topic != "" {
				config.Topics = []string{c.topic}
			}
			config.TLS, config.SASL = c.tls, c.sasl
			began := time.Now()
			err := consume(t, config, &recorder{}).result()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "wrong-secret") {
				t.Errorf("the password is in the error: %v", err)
			}
			if took := time.Since(began); took > 22*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// K17: TLS and SASL by kafka-go's own types, on all listeners of a real broker.
func TestK17ListenersWithTLSAndSASL(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t).Broker()
	topic := stack.Topic(t, broker.Addr, 1)
	produce(t, client(t, broker.Addr), topic, 0, numbered(0, 3)...)
	sha256, err := scram.Mechanism(scram.SHA256, broker.User, broker.Password)
	if err != nil {
		t.Fatal(err)
	}
	sha512, err := scram.Mechanism(scram.SHA512, broker.User, broker.Password)
	if err != nil {
		t.Fatal(err)
	}
	simple := plain.Mechanism{Username: broker.User, Password: broker.Password}
	trusted := &tls.Config{RootCAs: broker.CA}
	for name, c := range map[string]struct {
		addr string
		tls  *tls.Config
		sasl sasl.Mechanism
	}{
		"TLS":   {broker.TLS, trusted, nil},
		"PLAIN": {broker.SASL, nil, simple}, "SCRAM-SHA-256": {broker.SASL, nil, sha256}, "SCRAM-SHA-512": {broker.SASL, nil, sha512},
		"TLS-PLAIN": {broker.SASLTLS, trusted, simple}, "TLS-SCRAM-SHA-256": {broker.SASLTLS, trusted, sha256},
		"TLS-SCRAM-SHA-512": {broker.SASLTLS, trusted, sha512},
	} {
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
