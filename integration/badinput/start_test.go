package badinput

import (
	"context"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	onceward "github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// startFails consumes where that cannot work and returns the error, which must come in time.
func startFails(t *testing.T, config onceward.ConsumerConfig, processor inbox.Processor) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begin := time.Now()
	err := onceward.Consume(ctx, config, processor)
	if err == nil || ctx.Err() != nil {
		t.Fatalf("Consume went on for %v and returned %v, want an error", time.Since(begin), err)
	}
	t.Logf("after %v: %v", time.Since(begin).Round(time.Millisecond), err)
	return err
}

func (s *service) processor() inbox.Processor { return inbox.New(s.store, "billing", write) }

func TestUnknownTopicIsNamed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	config := s.config()
	config.Topics = []string{s.topic, "no-such-topic"}
	wantPhrases(t, startFails(t, config, s.processor()).Error(), "no-such-topic", "Topics", "create")
}

func TestBrokerThatRefuses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	config := s.config()
	config.Brokers = []string{address}
	wantPhrases(t, startFails(t, config, s.processor()).Error(), "Brokers", address, "refused")
}

// TestBrokerThatNeverAnswers has a listener that takes connections, by the kernel's hand, and says nothing.
func TestBrokerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	config := s.config()
	config.Brokers = []string{listener.Addr().String()}
	wantPhrases(t, startFails(t, config, s.processor()).Error(), "Brokers", listener.Addr().String())
}

func TestOneDeadBrokerAmongOthersIsNoHindrance(t *testing.T) {
	t.Parallel()
	s := newService(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := listener.Addr().String()
	_ = listener.Close()
	s.send(message{id: id(nextID)})
	config := s.config()
	config.Brokers = []string{dead, s.broker}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- onceward.Consume(ctx, config, s.processor()) }()
	s.await("the message has its effect", func() bool { return s.effects(nextID) == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Consume ended with %v", err)
	}
}

func TestSchemaThatWasNotMigrated(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pool, err := pgxpool.New(t.Context(), stack.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s.send(message{id: id(nextID)})
	err = startFails(t, s.config(), inbox.New(postgres.New(pool), "billing", write))
	if !errors.Is(err, idempotency.ErrNotMigrated) {
		t.Errorf("the error is not ErrNotMigrated: %v", err)
	}
	wantPhrases(t, err.Error(), "Migrate")

	// Nothing was lost: with the schema in place the same group handles the message.
	stop := s.consume(write)
	s.await("the message has its effect", func() bool { return s.effects(nextID) == 1 })
	stop()
}

// TestSchemaThatVanishes takes the schema away under a running consumer, and gives it back.
func TestSchemaThatVanishes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stop := s.consume(write)
	s.send(message{id: id("first")})
	s.await("the first message has its effect", func() bool { return s.effects("first") == 1 })
	if _, err := s.pool.Exec(t.Context(), `ALTER SCHEMA onceward RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	s.send(message{id: id(nextID)})
	s.await("the outage is reported", func() bool { return s.seen(inbox.EventOutage) > 0 })
	if _, err := s.pool.Exec(t.Context(), `ALTER SCHEMA away RENAME TO onceward`); err != nil {
		t.Fatal(err)
	}
	s.await("the message behind has its effect", func() bool { return s.effects(nextID) == 1 })
	stop()
	s.wantLetters("")
}

func TestDatabaseThatIsNotThere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := listener.Addr().String()
	_ = listener.Close()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	there, err := url.Parse(stack.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ address, database, phrase string }{
		"refused":          {refused, "/postgres", "refused"},
		"silent":           {silent.Addr().String(), "/postgres", ""},
		"no such database": {there.Host, "/no_such_database", "no_such_database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := *there
			address.Host, address.Path = c.address, c.database
			pool, err := pgxpool.New(t.Context(), address.String()+"&connect_timeout=3")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			err = startFails(t, s.config(), inbox.New(postgres.New(pool), "billing", write))
			if !errors.Is(err, idempotency.ErrUnavailable) {
				t.Errorf("the error is not ErrUnavailable: %v", err)
			}
			wantPhrases(t, err.Error(), c.phrase)
		})
	}
}
