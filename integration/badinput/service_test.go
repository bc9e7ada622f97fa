package badinput

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	onceward "github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// patience bounds every wait on a busy machine.
const patience = 60 * time.Second

// nextID is the message behind the bad ones: what must still be handled.
const nextID = "next"

// service is a consumer of one partition whose effect is a row with the message's id.
type service struct {
	t      testing.TB
	broker string
	topic  string
	pool   *pgxpool.Pool
	store  *postgres.Store
	client *kafka.Client

	inbox *inbox.Inbox[pgx.Tx]

	mu     sync.Mutex
	events []inbox.Event
}

// newService makes a migrated database and a topic of one partition with these configs ("name=value").
func newService(t testing.TB, configs ...string) *service {
	t.Helper()
	return newPartitionedService(t, 1, configs...)
}

func newPartitionedService(t testing.TB, partitions int, configs ...string) *service {
	t.Helper()
	s := &service{t: t, broker: stack.Kafka(t).Addr}
	s.topic = stack.Topic(t, s.broker, partitions, configs...)
	transport := &kafka.Transport{DialTimeout: 5 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	s.client = &kafka.Client{Addr: kafka.TCP(s.broker), Timeout: patience, Transport: transport}

	var err error
	if s.pool, err = pgxpool.New(t.Context(), stack.Postgres(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	s.store = postgres.New(s.pool)
	if err := s.store.Migrate(t.Context()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	if _, err := s.pool.Exec(t.Context(), `CREATE TABLE effect (id bytea NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return s
}

// write is a handler that behaves.
func write(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, []byte(m.ID))
	return err
}

// unlessNext calls bad for every message but the one behind the bad ones.
func unlessNext(bad inbox.Handler[pgx.Tx]) inbox.Handler[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if m.ID == nextID {
			return write(ctx, tx, m)
		}
		return bad(ctx, tx, m)
	}
}

// refuse sets everything aside.
func refuse(context.Context, pgx.Tx, inbox.Message) error {
	return inbox.Permanent(errors.New("refused by the test"))
}

// run sends the bad messages and one behind them, consumes until that has its effect, and ends with a clean drain.
func (s *service) run(handler inbox.Handler[pgx.Tx], bad []message, options ...inbox.Option) {
	s.t.Helper()
	s.send(append(bad, message{id: id(nextID), payload: []byte("{}")})...)
	stop := s.consume(handler, options...)
	s.await("the message behind the bad ones has its effect", func() bool { return s.effects(nextID) == 1 })
	stop()
}

// consume starts the consumer. The returned function asks it to end, which must be clean.
func (s *service) consume(handler inbox.Handler[pgx.Tx], options ...inbox.Option) (stop func()) {
	s.t.Helper()
	options = append([]inbox.Option{
		inbox.MaxAttempts(2), inbox.Backoff(time.Millisecond, 10*time.Millisecond),
		inbox.OnEvent(s.hook), inbox.Logger(slog.New(slog.DiscardHandler)),
	}, options...)
	s.inbox = inbox.New(s.store, "billing", handler, options...)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- onceward.Consume(ctx, s.config(), s.inbox) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				s.t.Errorf("Consume ended with %v, want a clean drain", err)
			}
		})
	}
	s.t.Cleanup(stop)
	return stop
}

func (s *service) config() onceward.ConsumerConfig {
	return onceward.ConsumerConfig{
		Brokers: []string{s.broker}, Group: s.topic, Topics: []string{s.topic},
		SessionTimeout: 6 * time.Second, RebalanceTimeout: 10 * time.Second, DrainTimeout: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler), OnEvent: s.hook,
	}
}

func (s *service) hook(_ context.Context, e inbox.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// failures are the errors of failed attempts, and of what was set aside, so far.
func (s *service) failures() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, e := range s.events {
		if e.Kind == inbox.EventFailed || e.Kind == inbox.EventParked {
			errs = append(errs, e.Err)
		}
	}
	return errs
}

func (s *service) seen(kind inbox.EventKind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// message is what a producer sends. Nil and empty differ.
type message struct {
	key, payload []byte
	headers      []kafka.Header
	id           []byte // nil: no header
}

func id(s string) []byte { return []byte(s) }

func (s *service) send(messages ...message) {
	s.t.Helper()
	for _, m := range messages {
		// A topic made a moment ago may not be served yet. Nothing was written then.
		var err error
		s.await("the broker serves "+s.topic, func() bool {
			err = s.produce(m)
			return !errors.Is(err, kafka.UnknownTopicOrPartition)
		})
		if err != nil {
			s.t.Fatalf("send: %v", err)
		}
	}
}

func (s *service) produce(m message) error {
	record := kafka.Record{Headers: slices.Clone(m.headers)}
	if m.key != nil {
		record.Key = kafka.NewBytes(m.key)
	}
	if m.payload != nil {
		record.Value = kafka.NewBytes(m.payload)
	}
	if m.id != nil {
		record.Headers = append(record.Headers, kafka.Header{Key: inbox.HeaderID, Value: m.id})
	}
	response, err := s.client.Produce(s.t.Context(), &kafka.ProduceRequest{
		Topic: s.topic, Partition: 0, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(record),
	})
	if err != nil {
		return err
	}
	return response.Error
}

// effects counts the rows of one id.
func (s *service) effects(id string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.Background(), `SELECT count(*) FROM effect WHERE id = $1`, []byte(id)).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// wantEffects checks how many rows there are for each id.
func (s *service) wantEffects(want map[string]int) {
	s.t.Helper()
	for id, n := range want {
		if got := s.effects(id); got != n {
			s.t.Errorf("id %.40q of %d bytes has %d effects, want %d", id, len(id), got, n)
		}
	}
}

// wantLetters checks that exactly the messages given were set aside, for one reason and with every byte.
func (s *service) wantLetters(reason inbox.Reason, want ...message) []inbox.DeadLetter {
	s.t.Helper()
	letters, err := s.inbox.DeadLetters(context.Background(), inbox.Filter{})
	if err != nil {
		s.t.Fatalf("list dead letters: %v", err)
	}
	if len(letters) != len(want) {
		s.t.Fatalf("%d dead letters, want %d: %v", len(letters), len(want), s.failures())
	}
	for i, l := range letters {
		if l.Reason != reason {
			s.t.Errorf("letter %d: reason %q, want %q (%s)", i, l.Reason, reason, l.Error)
		}
		s.wantBytes(l.Message, want[i]) //nolint:gosec // as many as letters
	}
	return letters
}

func (s *service) wantBytes(got inbox.Message, want message) {
	s.t.Helper()
	same := func(what string, got, want []byte) {
		s.t.Helper()
		if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			s.t.Errorf("%s: %d bytes (nil: %v) %.60q, want %d bytes (nil: %v) %.60q", what, len(got), got == nil, got, len(want), want == nil, want)
		}
	}
	same("key", got.Key, want.key)
	same("payload", got.Payload, want.payload)
	if got.ID != string(want.id) {
		s.t.Errorf("id: %d bytes %.60q, want %d bytes %.60q", len(got.ID), got.ID, len(want.id), want.id)
	}
	headers := slices.Clone(want.headers)
	if want.id != nil {
		headers = append(headers, kafka.Header{Key: inbox.HeaderID, Value: want.id})
	}
	if len(got.Headers) != len(headers) {
		s.t.Fatalf("%d headers, want %d", len(got.Headers), len(headers))
	}
	for i, h := range headers {
		if got.Headers[i].Name != h.Key {
			s.t.Errorf("name of header %d: %q, want %q", i, got.Headers[i].Name, h.Key)
		}
		same("header "+h.Key, got.Headers[i].Value, h.Value)
	}
}

// await waits for a condition.
func (s *service) await(what string, is func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s; failures: %v", patience, what, s.failures())
		}
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
}
