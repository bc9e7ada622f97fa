package postgres_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

var (
	wholeOutboxTable = regexp.MustCompile(`Seq Scan on (outbox|aside|relay_lane|relay_instance)\b`)
	// An event that is to be pruned is compared with a lane of every relay.
	wholePrunedTable = regexp.MustCompile(`Seq Scan on (outbox|aside|relay_instance)\b`)
	totalCost        = regexp.MustCompile(`cost=[0-9.]+\.\.([0-9.]+)`)
)

// jitAbove is PostgreSQL's jit_above_cost: from there on it compiles a statement
// before it runs it, which takes tens of milliseconds.
const jitAbove = 100_000

// TestEveryStatementOfARelayUsesItsIndex explains what each method sends, on tables that
// are too large to read whole: once for the arguments, and once for any.
func TestEveryStatementOfARelayUsesItsIndex(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	// Of one transaction, and of one each: what the planner thinks of xid.
	for name, setUp := range map[string]string{
		"one": `INSERT INTO onceward.outbox (topic, key) SELECT 'orders', convert_to(n::text, 'UTF8') FROM generate_series(1, 50000) n`,
		"many": `INSERT INTO onceward.outbox (topic, key) SELECT 'orders', convert_to(n::text, 'UTF8') FROM generate_series(1, 50000) n;
			ALTER TABLE onceward.outbox ALTER xid SET (n_distinct = -1)`,
	} {
		t.Run(name, func(t *testing.T) {
			execute(t, admin, `ALTER TABLE onceward.outbox ALTER xid RESET (n_distinct)`)
			execute(t, admin, `TRUNCATE onceward.outbox, onceward.aside, onceward.relay, onceward.relay_lane, onceward.relay_instance`)
			execute(t, admin, setUp)
			log := &recorder{}
			store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = log }))
			for _, fill := range []string{
				`INSERT INTO onceward.relay (name, lanes, topics, policy, retention) SELECT 'r' || n, 64, '{}', 'block_lane', '1 hour' FROM generate_series(1, 100) n`,
				`INSERT INTO onceward.relay_lane (relay, lane) SELECT name, n FROM onceward.relay, generate_series(0, 63) n`,
				`INSERT INTO onceward.relay_instance SELECT name, 'i' || n, now(), now() + interval '1 hour' FROM onceward.relay, generate_series(1, 100) n`,
				`INSERT INTO onceward.aside (relay, number, lane, state, key_hash, due_at, attempts, error)
					SELECT 'r' || number % 100 + 1, number, slot % 64, CASE WHEN number % 2 = 0 THEN 'dead' ELSE 'delayed' END, number::text,
						CASE WHEN number % 2 = 1 THEN now() + number * interval '1 second' END, 0, '' FROM onceward.outbox WHERE number % 4 < 2`,
			} {
				execute(t, admin, fill)
			}
			execute(t, admin, `ANALYZE onceward.outbox, onceward.aside, onceward.relay, onceward.relay_lane, onceward.relay_instance`)
			if err := everythingOfRelays(t, store); err != nil {
				t.Fatal(err)
			}
			readOn(t, admin, store)

			explained := 0
			for _, q := range log.sent {
				// ChangeLanes reads all that a relay has set aside, with its events.
				if !strings.Contains(q.SQL, `"onceward".`) || len(q.Args) == 0 || strings.Contains(q.SQL, `e.number = a.number`) {
					continue
				}
				explained++
				whole := wholeOutboxTable
				if strings.Contains(q.SQL, `DELETE FROM "onceward".outbox`) {
					whole = wholePrunedTable
				}
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					plan := explain(t, admin, mode, q)
					if whole.MatchString(plan) {
						t.Errorf("%s reads a whole table:\n%s\n%s", mode, q.SQL, plan)
					}
					cost, err := strconv.ParseFloat(totalCost.FindStringSubmatch(plan)[1], 64)
					if err != nil {
						t.Fatal(err)
					}
					if hot := strings.Contains(q.SQL, "MATERIALIZED") && !strings.Contains(q.SQL, "RECURSIVE"); hot && cost > jitAbove/2 {
						t.Errorf("%s expects a cost of %.0f:\n%s\n%s", mode, cost, q.SQL, plan)
					}
				}
			}
			if explained < 40 {
				t.Errorf("%d statements were explained: not all were seen", explained)
			}
		})
	}
}

// readOn reads in every form: of some lanes, of topics, with late transactions, large
// values, and to a meeting place.
func readOn(t *testing.T, admin *pgxpool.Pool, store *postgres.Store) {
	t.Helper()
	late := publish(t, admin, store, eventsOf("orders", "late", 3)...)
	f := follow(t, store, registrationOf("some"), "a")
	f.limit = 1000
	large := eventsOf("mail", "large", 2)
	large[0].Payload = make([]byte, 1<<20)
	publish(t, admin, store, large...)()
	f.all()
	late()
	f.relay.Topics = []string{"orders", "m*"}
	chunk := f.read()
	if len(chunk.Events) != 3 {
		t.Fatalf("%d late events", len(chunk.Events))
	}
	_, err := store.Read(t.Context(), outbox.ReadRequest{
		Relay: "some", Lanes: []int{1}, AllLanes: 4, Position: outbox.Position{}, Until: chunk.End, Limit: 5000, MaxBytes: 1 << 22,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestIdleRelayWritesNothing: positions stay as they are while nothing comes, whatever
// other transactions there are.
func TestIdleRelayWritesNothing(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	log := &recorder{}
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = log }))
	publish(t, admin, store, eventsOf("orders", "a", 10)...)()
	f := follow(t, store, registrationOf("events"), "a")
	for range 3 {
		f.all()
	}
	at := f.owned[0].Position
	log.sent = nil
	for range 10 {
		execute(t, admin, `INSERT INTO effect VALUES ('other')`)
		if chunk := f.read(); chunk.More || chunk.End != at || chunk.Window != at {
			t.Fatalf("read %+v at %+v", chunk, at)
		}
	}
	if len(log.sent) != 10 {
		t.Errorf("%d statements for 10 reads", len(log.sent))
	}
	lease, err := store.Lease(t.Context(), "events", "a", time.Hour)
	if err != nil || len(lease.Lanes) != 4 || lease.Due >= 0 || len(log.sent) != 11 {
		t.Errorf("lease %+v, error %v, %d statements", lease, err, len(log.sent))
	}
}

// TestReadPassesOverManyEventsOfOtherTopics: a relay whose events are large asks for few of
// them, and should not need a statement for every few thousand of others.
func TestReadPassesOverManyEventsOfOtherTopics(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	execute(t, admin, `INSERT INTO onceward.outbox (topic) SELECT 'orders' FROM generate_series(1, 50000) n`)
	publish(t, admin, store, eventsOf("mail", "m", 1)...)()
	relay := registrationOf("mails")
	relay.Topics = []string{"mail"}
	f := follow(t, store, relay, "a")
	f.limit = 64
	if chunk := f.read(); len(chunk.Events) != 1 {
		t.Errorf("%d events with the first statement, want the one behind 50,000 of another topic", len(chunk.Events))
	}
}
