package outbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// fixture is a database with a log.
type fixture struct {
	t     *testing.T
	admin *pgxpool.Pool
	store *postgres.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	url := stack.Postgres(t)
	admin := newDatabase(t, url)
	return &fixture{t: t, admin: admin, store: postgres.New(admin)}
}

// publish commits events by an outbox.
func (f *fixture) publish(events *outbox.Outbox[pgx.Tx], messages ...outbox.Message) {
	f.t.Helper()
	err := pgx.BeginFunc(f.t.Context(), f.admin, func(tx pgx.Tx) error { return events.Publish(f.t.Context(), tx, messages...) })
	if err != nil {
		f.t.Fatalf("publish: %v", err)
	}
}

// run starts a relay with few attempts, which is stopped when the test ends.
func (f *fixture) run(publisher outbox.Publisher, change ...func(*outbox.RelayConfig)) *instance {
	f.t.Helper()
	i := startRelay(f.store, publisher, f.config(change...))
	f.t.Cleanup(func() {
		i.cancel()
		_ = i.end(f.t)
	})
	return i
}

func (f *fixture) config(change ...func(*outbox.RelayConfig)) outbox.RelayConfig {
	config := outbox.RelayConfig{
		Name: "events", Lanes: 1, MaxAttempts: 2, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
		Poll: 10 * time.Millisecond, Logger: newLogger(f.t),
	}
	for _, c := range change {
		c(&config)
	}
	return config
}

// refused runs a relay that must end by itself at once, and returns why it did.
func (f *fixture) refused(change ...func(*outbox.RelayConfig)) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	err := outbox.NewRelay(f.store, newRecorder(1), f.config(change...)).Run(ctx)
	if err == nil || ctx.Err() != nil {
		f.t.Fatalf("the relay ran, with %v in the end", err)
	}
	return err
}

// wantDead waits for the dead letter of an event, whose error must say what is wanted.
func (f *fixture) wantDead(id string, says ...string) outbox.AsideEvent {
	f.t.Helper()
	var letter outbox.AsideEvent
	eventually(f.t, "the dead letter of "+id, func() bool {
		letters, err := f.store.SetAside(f.t.Context(), "events", outbox.Filter{State: outbox.Dead, MessageID: id, Limit: 10})
		if err != nil || len(letters) != 1 {
			return false
		}
		letter = letters[0]
		return true
	})
	wantText(f.t, letter.Aside.Error, says...)
	return letter
}

func wantText(t testing.TB, text string, says ...string) {
	t.Helper()
	for _, s := range says {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(s)) {
			t.Errorf("%q does not say %q", text, s)
		}
	}
	if len(text) > 2000 {
		t.Errorf("the error has %d bytes", len(text))
	}
}

func newPublisher(t testing.TB, config kafka.PublisherConfig) *kafka.Publisher {
	t.Helper()
	config.Brokers, config.Logger = []string{stack.Kafka(t).Addr}, newLogger(t)
	publisher := kafka.NewPublisher(config)
	t.Cleanup(func() {
		if err := publisher.Close(); err != nil {
			t.Error(err)
		}
	})
	return publisher
}

// good is an event that nothing is wrong with. It has the lane of the bad one: there is only one.
func good(topic string) outbox.Message {
	return outbox.Message{ID: "good", Topic: topic, Key: []byte("good"), Payload: []byte("good")}
}

// TestMessageThatCannotBePublishedIsRefusedAndTransactionGoesOn: what Publish can see it refuses, before it writes anything.
func TestMessageThatCannotBePublishedIsRefusedAndTransactionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events := outbox.New(f.store)
	tx, err := f.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	secret := strings.Repeat("s3cret", 200_000)
	header := func(name string) outbox.Message {
		return outbox.Message{Topic: "orders", Headers: []outbox.Header{{Name: "fine"}, {Name: name}}}
	}
	for _, c := range []struct {
		what    string
		message outbox.Message
		says    []string
	}{
		{"payload over the limit", outbox.Message{Topic: "orders", Payload: []byte(secret)}, []string{"payload", "1200000", "1000000", "MaxBytes"}},
		{"key of 1 MB", outbox.Message{Topic: "orders", Key: []byte(secret)}, []string{"key", "1200000", "MaxBytes"}},
		{"no topic", outbox.Message{}, []string{"topic"}},
		{"header without a name", header(""), []string{"header 1", "empty"}},
		{"header that is not text", header("\xff"), []string{"header 1", "UTF-8"}},
		{"header with NUL", header("a\x00b"), []string{"header 1", "NUL"}},
		{"header of the id", header(outbox.HeaderID), []string{"header 1", outbox.HeaderID, "Message.ID"}},
		{"id that is not text", outbox.Message{ID: "\xff", Topic: "orders"}, []string{"ID", "UTF-8"}},
		{"long id", outbox.Message{ID: strings.Repeat("i", 513), Topic: "orders"}, []string{"ID", "512"}},
		{"topic with NUL", outbox.Message{Topic: "a\x00"}, []string{"topic", "NUL"}},
	} {
		err := events.Publish(t.Context(), tx, good("orders"), c.message)
		if err == nil {
			t.Errorf("%s was taken", c.what)
			continue
		}
		wantText(t, err.Error(), append(c.says, "message 2 of 2")...)
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the content", c.what)
		}
	}
	if err := events.Publish(t.Context(), tx, good("orders")); err != nil {
		t.Fatalf("the next event: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	published := newRecorder(1)
	f.run(published)
	eventually(t, "the next event", func() bool { return published.journal.has("good") })
	if got := published.journal.published(); len(got) != 1 {
		t.Errorf("published %v", got)
	}
}

func TestPublishOnFinishedTransactionSaysSo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events := outbox.New(f.store)
	for name, end := range map[string]func(pgx.Tx) error{
		"committed":   func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"rolled back": func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
	} {
		tx, err := f.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		err = events.Publish(t.Context(), tx, good("orders"))
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s: %v, want pgx.ErrTxClosed", name, err)
		} else {
			wantText(t, err.Error(), "transaction")
		}
	}
	if n := queryRow[int](t, f.admin, `SELECT count(*) FROM onceward.outbox`); n != 0 {
		t.Errorf("%d events were written", n)
	}
}

func TestUnknownTopicBecomesDeadLetterAndNextEventIsServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	topic := stack.Topic(t, stack.Kafka(t).Addr, 1)
	f.publish(outbox.New(f.store), outbox.Message{ID: "bad", Topic: topic + ".missing", Key: []byte("bad")}, good(topic))
	f.run(newPublisher(t, kafka.PublisherConfig{}))
	letter := f.wantDead("bad", topic+".missing", "exist")
	if letter.Aside.Attempts != 2 {
		t.Errorf("%d attempts, want MaxAttempts, 2", letter.Aside.Attempts)
	}
	wantOnTopic(t, f, topic, "good")
}

// wantOnTopic waits until the relay has passed everything, and wants a topic to hold just these.
func wantOnTopic(t testing.TB, f *fixture, topic string, want ...string) {
	t.Helper()
	eventually(t, "the end of the log", func() bool {
		status, err := statusOf(t.Context(), f.store, "events")
		return err == nil && status.Status[0].Events == 0
	})
	got := idsOf(readTopic(t, stack.Kafka(t).Addr, topic, 1))
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the topic holds %v, want %v", got, want)
	}
}

func TestTopicWithoutRouteBecomesDeadLetterAndNextEventIsServed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	published := newRecorder(1)
	f.publish(outbox.New(f.store), outbox.Message{ID: "bad", Topic: "invoices", Key: []byte("bad")}, good("orders.new"))
	f.run(outbox.Routes(outbox.Route{Topics: []string{"orders.*"}, Publisher: published}))
	f.wantDead("bad", "invoices", "route")
	eventually(t, "the next event", func() bool { return published.journal.has("good") })
}

// TestHeadersWrittenByPlainSQLThatAreNoneBecomeDeadLetter: no Publish has looked at them.
func TestHeadersWrittenByPlainSQLThatAreNoneBecomeDeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for id, headers := range map[string]string{
		"object": `{"a": "b"}`, "number": `7`, "pairs": `[["a"]]`, "name": `[[1, "b"]]`, "empty": `[["", "b"]]`, "value": `[["a", 1]]`,
	} {
		execute(t, f.admin, `INSERT INTO onceward.outbox (message_id, topic, key, payload, headers) VALUES ($1, 'orders', NULL, 'x', $2)`, id, headers)
	}
	f.publish(outbox.New(f.store), good("orders"))
	published := newRecorder(1)
	f.run(published)
	for _, id := range []string{"object", "number", "pairs", "name", "empty", "value"} {
		f.wantDead(id, "header")
	}
	eventually(t, "the next event", func() bool { return published.journal.has("good") })
	if got := published.journal.published(); len(got) != 1 {
		t.Errorf("published %v", got)
	}
}

// TestKeyOfAMegabyte works where limits are raised on both sides, and is a dead letter where the broker's is not.
func TestKeyOfAMegabyte(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broker := stack.Kafka(t).Addr
	small, large := stack.Topic(t, broker, 1), stack.Topic(t, broker, 1, "max.message.bytes=4000000")
	huge := []byte(strings.Repeat("k", 1<<20))
	events := outbox.New(f.store, outbox.MaxBytes(2<<20))
	f.publish(events,
		outbox.Message{ID: "bad", Topic: small, Key: huge, Payload: []byte("x")}, good(small),
		outbox.Message{ID: "large", Topic: large, Key: huge, Payload: []byte("x")})
	f.run(newPublisher(t, kafka.PublisherConfig{MaxBatchBytes: 3 << 20}))
	letter := f.wantDead("bad", "large")
	if letter.Aside.Attempts > 1 {
		t.Errorf("%d attempts at what can never work", letter.Aside.Attempts)
	}
	wantOnTopic(t, f, small, "good")
	got := readTopic(t, broker, large, 1)
	if len(got) != 1 || got[0].id != "large" || got[0].key != string(huge) {
		t.Errorf("the topic with a raised limit holds %d records, want the event with its key", len(got))
	}
}

func TestRelayWithOneNameAndOtherSettingsIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := func(c *outbox.RelayConfig) { c.Lanes, c.Topics = 4, []string{"orders*"} }
	published := newRecorder(1)
	f.run(published, first)
	f.publish(outbox.New(f.store), good("orders"))
	eventually(t, "the first event", func() bool { return published.journal.has("good") })
	for name, c := range map[string]struct {
		other func(*outbox.RelayConfig)
		says  []string
	}{
		"lanes":     {func(c *outbox.RelayConfig) { c.Lanes = 8 }, []string{"Lanes", "4", "8", "ChangeLanes"}},
		"topics":    {func(c *outbox.RelayConfig) { c.Topics = []string{"payments"} }, []string{"Topics", "orders*", "payments"}},
		"policy":    {func(c *outbox.RelayConfig) { c.Policy = outbox.ParkKey }, []string{"Policy", "park_key", "block_lane"}},
		"retention": {func(c *outbox.RelayConfig) { c.Retention = time.Hour }, []string{"Retention"}},
	} {
		err := f.refused(first, c.other)
		if !errors.Is(err, outbox.ErrSettings) {
			t.Errorf("%s: %v, want ErrSettings", name, err)
		}
		wantText(t, err.Error(), append(c.says, "events")...)
	}
	f.publish(outbox.New(f.store), outbox.Message{ID: "next", Topic: "orders"})
	eventually(t, "the next event", func() bool { return published.journal.has("next") })
}

// TestSequenceThatCachesIsRefusedUntilItDoesNot: its numbers would not be in the order of the transactions.
func TestSequenceThatCachesIsRefusedUntilItDoesNot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const sequence = `"onceward".outbox_number`
	execute(t, f.admin, `ALTER SEQUENCE `+sequence+` CACHE 10`)
	err := f.refused()
	if !errors.Is(err, outbox.ErrLog) {
		t.Errorf("%v, want ErrLog", err)
	}
	wantText(t, err.Error(), "CACHE 1", "ALTER SEQUENCE", sequence)
	execute(t, f.admin, `ALTER SEQUENCE `+sequence+` CACHE 1`)
	published := newRecorder(1)
	f.run(published)
	f.publish(outbox.New(f.store), good("orders"))
	eventually(t, "the next event", func() bool { return published.journal.has("good") })
}

// TestLanesChangeWhileEventsWait: a relay with another number is refused and told the cure, which works on a relay that is
// stopped: nothing is lost, and keys stay in order.
func TestLanesChangeWhileEventsWait(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	f := newFixture(t)
	w := newWriters(t, f.admin.Config().ConnString())
	published := newRecorder(random.Uint64())
	end := loadUntil(t, w, random)
	defer end()
	lanes := func(n int) func(*outbox.RelayConfig) {
		return func(c *outbox.RelayConfig) { c.Lanes, c.Batch, c.MaxAttempts = n, 7, 10 }
	}
	operator := outbox.NewOperator(f.store)
	last := 8
	relay := f.run(published, lanes(last))
	for _, next := range []int{3, 16, 1, 8} {
		before := published.journal.distinct()
		eventually(t, "some more events", func() bool { return published.journal.distinct() > before+20 })
		if err := operator.ChangeLanes(t.Context(), "events", next); !errors.Is(err, outbox.ErrRunning) {
			t.Errorf("lanes of a running relay: %v, want ErrRunning", err)
		}
		relay.stop(t)
		w.run(t.Context(), random, 1, 5) // they wait
		if err := f.refused(lanes(next)); !errors.Is(err, outbox.ErrSettings) {
			t.Errorf("%d lanes instead of %d: %v", next, last, err)
		}
		if err := operator.ChangeLanes(t.Context(), "events", next); err != nil {
			t.Fatalf("from %d to %d lanes: %v", last, next, err)
		}
		relay = f.run(published, lanes(next))
		last = next
	}
	end()
	ledger := readLedger(t, f.admin)
	published.journal.await(t, "everything that was committed", ledger)
	relay.stop(t)
	v := judge(ledger, published.journal.published())
	wantInOrder(t, "published", v)
	t.Log(v)
}
