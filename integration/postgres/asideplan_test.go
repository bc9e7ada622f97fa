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

// rowsOf are the rows that a plan that was run has read by aside_due, and how often it looked.
var rowsOf = regexp.MustCompile(`Index (?:Only )?Scan using aside_due .*actual rows=([\d.]+) loops=(\d+)`)

// A relay asks for what is due again and again, with its largest batch, and reads nothing
// else meanwhile.
func TestWhatIsDueIsFoundWithoutReadingWhatIsNot(t *testing.T) {
	t.Parallel()
	const lanes = 16
	url, admin := newDatabase(t)
	log := &recorder{}
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = log }))
	execute(t, admin, `INSERT INTO onceward.outbox (topic, key) SELECT 'orders', convert_to(n::text, 'UTF8') FROM generate_series(1, 40000) n`)
	execute(t, admin, `INSERT INTO onceward.aside (relay, number, lane, state, key_hash, due_at, attempts, error)
		SELECT 'events', number, slot % 16, 'delayed', number::text, now() + interval '1 hour', 0, '' FROM onceward.outbox`)
	execute(t, admin, `UPDATE onceward.aside SET due_at = now() WHERE number IN (SELECT number FROM onceward.outbox ORDER BY number LIMIT 10)`)
	execute(t, admin, `VACUUM ANALYZE onceward.aside`)
	all := make([]int, lanes)
	for i := range all {
		all[i] = i
	}
	due, err := store.Due(t.Context(), "events", all, 8000, 4<<20)
	if err != nil || len(due.Events) != 10 || due.Next <= 0 {
		t.Fatalf("%d events are due, the next in %v, error %v", len(due.Events), due.Next, err)
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		plan := explainBy(t, admin, `EXPLAIN (ANALYZE, TIMING off)`, mode, log.sent[len(log.sent)-1])
		read, looks := 0.0, 0
		for _, scan := range rowsOf.FindAllStringSubmatch(plan, -1) {
			rows, _ := strconv.ParseFloat(scan[1], 64) // on average
			loops, _ := strconv.Atoi(scan[2])
			read, looks = read+rows*float64(loops), looks+loops
		}
		if looks < lanes || read > 10+2*lanes {
			t.Errorf("%s reads %.0f rows with %d looks, of 10 that are due in %d lanes:\n%s", mode, read, looks, lanes, plan)
		}
		if strings.Contains(plan, "JIT:") {
			t.Errorf("%s compiles the statement:\n%s", mode, plan)
		}
	}
}

func TestLaneWithMoreThanItsShareThatIsDueGoesOnWithTheNextCall(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	f := follow(t, store, registrationOf("events"), "a")
	f.limit = 1000
	const events = 300 // of one key, in one lane
	messages := eventsOf("orders", "m", events)
	for i := range messages {
		messages[i].Key = []byte("k")
	}
	publish(t, admin, store, messages...)()
	var aside []outbox.Aside
	var want []string
	for _, e := range f.read().Events {
		aside = append(aside, outbox.Aside{Number: e.Number, Lane: e.Lane, State: outbox.Delayed})
		want = append(want, e.ID)
	}
	f.save(aside...)

	var got []string
	lanes := make([]int, 0, len(f.owned))
	for _, l := range f.owned {
		lanes = append(lanes, l.Lane)
	}
	for calls := 0; len(got) < events && calls < events; calls++ {
		due, err := store.Due(t.Context(), "events", lanes, 100, 1<<20)
		if err != nil || len(due.Events) == 0 {
			t.Fatalf("%d of %d came, and then %d, error %v", len(got), events, len(due.Events), err)
		}
		for _, e := range due.Events {
			got = append(got, e.ID)
		}
		if more := len(got) < events; more != (due.Next == 0) {
			t.Fatalf("the next is due in %v with %d of %d", due.Next, len(got), events)
		}
		s := outbox.Settlement{Relay: "events", Instance: "a", Done: due.Asides}
		for _, l := range f.owned {
			s.Lanes = append(s.Lanes, outbox.LaneProgress{OwnedLane: l})
		}
		if _, err := store.Settle(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%d of %d came, in this order: %v", len(got), events, got)
	}
}

// An instance that takes lanes has 10 seconds to find out what they hold. Without ParkKey
// dead letters hold up nobody, however many have come together.
func TestDeadLettersOfARelayThatParksNoKeysAreNotReadAtItsStart(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	for policy, want := range map[outbox.Policy]int{outbox.BlockLane: 1, outbox.ParkKey: 3} {
		relay := registrationOf(string(policy))
		relay.Policy = policy
		f := follow(t, store, relay, "a")
		messages := eventsOf("orders", string(policy), 3)
		for i := range messages {
			messages[i].Key = []byte{byte(i)}
		}
		publish(t, admin, store, messages...)()
		var aside []outbox.Aside
		for _, e := range f.read().Events {
			aside = append(aside, outbox.Aside{Number: e.Number, Lane: e.Lane, State: outbox.Dead, KeyHash: e.ID, Attempts: 10})
		}
		last := &aside[len(aside)-1]
		last.State, last.After = outbox.Retrying, time.Hour
		f.save(aside...)
		held, err := store.Held(t.Context(), relay.Relay, []int{0, 1, 2, 3})
		if err != nil || len(held) < want || policy == outbox.BlockLane && len(held) != want {
			t.Errorf("%s: %d are held, want %d; error %v", policy, len(held), want, err)
		}
	}
}
