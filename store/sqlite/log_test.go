package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

func noteVerdict(verdict *idempotency.Verdict) func(context.Context, *sql.Tx, []idempotency.Verdict) error {
	return func(_ context.Context, _ *sql.Tx, verdicts []idempotency.Verdict) error {
		*verdict = verdicts[0]
		return nil
	}
}

func oneLane() outbox.Registration {
	return outbox.Registration{Relay: "events", Lanes: 1, Policy: outbox.BlockLane, Retention: time.Hour}
}

func readAll(t *testing.T, store *sqlite.Store) []outbox.Event {
	t.Helper()
	chunk, err := store.Read(t.Context(), outbox.ReadRequest{Relay: "events", Lanes: []int{0}, AllLanes: 1, Limit: 10_000, MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return chunk.Events
}

// TestSettingsAreChangedAsTheDocumentationSays: topics in any order. Whoever was frozen
// meanwhile would pass events of topics that are new.
func TestSettingsAreChangedAsTheDocumentationSays(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	zombie, store := db.open(t, time.Minute), db.open(t, time.Minute)
	if err := zombie.Register(t.Context(), oneLane()); err != nil {
		t.Fatal(err)
	}
	_, err := store.DB().ExecContext(t.Context(), `UPDATE onceward_relay SET topics = '["orders","audit.*"]', policy = 'park_key', retention = 7200000000`)
	if err != nil {
		t.Fatal(err)
	}
	changed := oneLane()
	changed.Topics, changed.Policy, changed.Retention = []string{"audit.*", "orders"}, outbox.ParkKey, 2*time.Hour
	if err := store.Register(t.Context(), changed); err != nil {
		t.Error(err)
	}
	if lease, err := store.Lease(t.Context(), "events", "new", time.Hour); err != nil || len(lease.Lanes) != 1 {
		t.Errorf("leased %+v, error %v", lease, err)
	}
	if _, err := zombie.Lease(t.Context(), "events", "zombie", time.Hour); !errors.Is(err, outbox.ErrSettings) {
		t.Errorf("the zombie's lease ends with %v", err)
	}
}

func TestEventsCommitWithTheWorkOfAnInbox(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	own := errors.New("card declined")
	for id, result := range map[string]error{"committed": nil, "rolled back": own} {
		err := store.Atomic(t.Context(), claim(id), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
			if err := store.Append(ctx, tx, []outbox.Message{{ID: id, Topic: "orders"}}); err != nil {
				return err
			}
			return result
		})
		if !errors.Is(err, result) {
			t.Fatal(err)
		}
	}
	if events := readAll(t, store); len(events) != 1 || events[0].ID != "committed" {
		t.Errorf("in the log are %+v", events)
	}
}

// TestNoEventOutlivesATransactionThatSQLiteEnded: the driver takes it for open, and
// each statement after the end would be committed by itself.
func TestNoEventOutlivesATransactionThatSQLiteEnded(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"or rollback": `INSERT OR ROLLBACK INTO effect VALUES (NULL)`,
		"rollback":    `ROLLBACK`,
		"commit":      `COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newDatabase(t).open(t, time.Minute)
			tx, err := store.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = tx.ExecContext(t.Context(), end)
			for range 2 {
				err = store.Append(t.Context(), tx, []outbox.Message{{ID: "late", Topic: "orders"}})
				wantIs(t, err, idempotency.ErrTransactionEnded)
			}
			_ = tx.Rollback()
			if events := readAll(t, store); len(events) != 0 {
				t.Errorf("in the log are %+v", events)
			}
		})
	}
}

// TestAppendThatFailsLeavesNothing, also in a transaction that is committed all the same.
func TestAppendThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 1200} {
		store := newDatabase(t).open(t, time.Minute)
		messages := make([]outbox.Message, n)
		for i := range messages {
			messages[i] = outbox.Message{ID: fmt.Sprintf("bad-%d", i), Topic: "orders"}
		}
		messages[n-1].Topic = "" // The outbox would not let it through.
		tx, err := store.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Append(t.Context(), tx, messages[:1]); err != nil {
			t.Error(err)
		}
		if err := store.Append(t.Context(), tx, messages); err == nil {
			t.Error("it did not fail")
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if events := readAll(t, store); len(events) != 1 {
			t.Errorf("in the log are %d events", len(events))
		}
	}
}

func TestDefaultsOfAPlainInsert(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	before := time.Now()
	for range 50 {
		if _, err := store.DB().ExecContext(t.Context(), `INSERT INTO onceward_event (topic, key, payload) VALUES ('orders', 'k', '{}')`); err != nil {
			t.Fatal(err)
		}
	}
	uuid7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	ids := map[string]bool{}
	for _, event := range readAll(t, store) {
		if !uuid7.MatchString(event.ID) || ids[event.ID] {
			t.Errorf("ID %q is no UUIDv7, or not the only one", event.ID)
		}
		ids[event.ID] = true
		var millis int64
		if _, err := fmt.Sscanf(strings.ReplaceAll(event.ID[:13], "-", ""), "%x", &millis); err != nil || millis != event.CreatedAt.UnixMilli() {
			t.Errorf("ID %q is of %d, the event of %d", event.ID, millis, event.CreatedAt.UnixMilli())
		}
		if from := event.CreatedAt.Sub(before); from < -10*time.Millisecond || from > time.Minute {
			t.Errorf("created %v after the beginning", from)
		}
		if string(event.Key) != "k" || string(event.Payload) != "{}" || event.Headers != nil || event.Waits > 0 || event.Invalid != nil {
			t.Errorf("got %+v", event)
		}
	}
}

func TestPlainInsertOfWhatIsNoEventIsRefused(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	for _, statement := range []string{
		`INSERT INTO onceward_event (payload) VALUES ('{}')`,
		`INSERT INTO onceward_event (topic) VALUES ('')`,
		`INSERT INTO onceward_event (topic) VALUES (printf('%0513d', 1))`,
		`INSERT INTO onceward_event (topic, id) VALUES ('orders', '')`,
		`INSERT INTO onceward_event (topic, key) VALUES ('orders', 17)`,
		`INSERT INTO onceward_event (topic, payload) VALUES ('orders', 1.5)`,
		`INSERT INTO onceward_event (topic, headers) VALUES ('orders', '[')`,
		`INSERT INTO onceward_event (topic, deliver_after) VALUES ('orders', 'tomorrow')`,
		`INSERT INTO onceward_event (topic, deliver_after) VALUES ('orders', -9223372036854775808)`,
		`INSERT INTO onceward_event (topic, deliver_after) VALUES ('orders', 9223372036854775807)`,
		`INSERT INTO onceward_event (topic, created_at) VALUES ('orders', -9223372036854775808)`,
		`INSERT INTO onceward_event (topic, created_at) VALUES ('orders', 9223372036854775807)`,
	} {
		if _, err := store.DB().ExecContext(t.Context(), statement); err == nil {
			t.Errorf("%s was not refused", statement)
		}
	}
}

func TestHeadersOfAPlainInsert(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	cases := []struct{ headers, want string }{
		{`[]`, `[]`},
		{`null`, `[]`},
		{`[{"name": "a", "value": "text é"}, {"name": "a", "base64": "AP8="}]`, `[{"a" "text é"} {"a" "\x00\xff"}]`},
		{`[{"name": "a"}, {"name": "b", "value": null}, {"name": "c", "value": ""}]`, `[{"a" ""} {"b" ""} {"c" ""}]`},
		{`{"a": "text"}`, ""},
		{`"text"`, ""},
		{`[["a", "text"]]`, ""},
		{`[{"name": "a", "value": 1}]`, ""},
		{`[{"name": "a", "text": "typo"}]`, ""},
		{`[{"name": "", "value": "text"}]`, ""},
		{`[{"value": "text"}]`, ""},
		{`[{"name": "a\u0000b"}]`, ""},
		{`[{"name": "a", "base64": "%"}]`, ""},
		{`[{"name": "a", "value": "x", "base64": "AP8="}]`, ""},
		{`[{"name": "Onceward-Id", "value": "x"}]`, ""},
	}
	for _, c := range cases {
		if _, err := store.DB().ExecContext(t.Context(), `INSERT INTO onceward_event (topic, headers) VALUES ('orders', ?)`, c.headers); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.DB().ExecContext(t.Context(), `INSERT INTO onceward_event (topic, id) VALUES (CAST(x'ff' AS TEXT), CAST(x'610062' AS TEXT))`); err != nil {
		t.Fatal(err)
	}
	events := readAll(t, store)
	for i, c := range cases {
		if got := fmt.Sprintf("%q", events[i].Headers); events[i].Invalid == nil && got != c.want || (events[i].Invalid != nil) != (c.want == "") {
			t.Errorf("%s is read as %s, %v", c.headers, got, events[i].Invalid)
		}
	}
	if last := events[len(cases)]; last.Invalid == nil || !strings.Contains(last.Invalid.Error(), "ID") {
		t.Errorf("a topic and an ID that are no text are %v", last.Invalid)
	}
}

// TestReadingTakesNoWriteLock: with a writer at work each of these would be ErrInProgress.
func TestReadingTakesNoWriteLock(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	store := d.open(t, 50*time.Millisecond)
	registration := oneLane()
	if err := d.open(t, time.Minute).Register(t.Context(), registration); err != nil {
		t.Fatal(err)
	}
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := store.Append(t.Context(), tx, []outbox.Message{{ID: "a", Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, read := range map[string]func() error{
		"Check":      func() error { return store.Check(ctx) },
		"Register":   func() error { return store.Register(ctx, registration) },
		"Read":       func() error { readAll(t, store); return nil },
		"Held":       func() error { _, err := store.Held(ctx, "events", []int{0}); return err },
		"Due":        func() error { _, err := store.Due(ctx, "events", []int{0}, 10, 100); return err },
		"Relays":     func() error { _, err := store.Relays(ctx, 10); return err },
		"Holders":    func() error { _, err := store.Holders(ctx); return err },
		"FirstSince": func() error { _, err := store.FirstSince(ctx, time.Now()); return err },
		"SetAside":   func() error { _, err := store.SetAside(ctx, "events", outbox.Filter{Limit: 10}); return err },
		"PruneLog":   func() error { _, err := store.PruneLog(ctx, 0, 10, time.Hour); return err },
	} {
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = store.Lease(ctx, "events", "a", time.Minute)
	wantIs(t, err, idempotency.ErrInProgress)
}

func TestLogThatGivesNumbersAgainIsRefused(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	registration := oneLane()
	exec := func(statement string) {
		t.Helper()
		if _, err := store.DB().ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO onceward_event (topic) VALUES ('a'), ('b'), ('c')`)
	registration.FromNow = true
	if err := store.Register(t.Context(), registration); err != nil {
		t.Fatal(err)
	}
	exec(`DELETE FROM onceward_event`)
	exec(`UPDATE sqlite_sequence SET seq = 0 WHERE name = 'onceward_event'`)
	for _, relay := range []string{"events", "other"} {
		registration.Relay = relay
		err := store.Register(t.Context(), registration)
		wantIs(t, err, outbox.ErrLog)
		if !strings.Contains(err.Error(), "seq of 3") {
			t.Errorf("%v names no cure", err)
		}
	}
	exec(`UPDATE sqlite_sequence SET seq = 3 WHERE name = 'onceward_event'`)
	if err := store.Register(t.Context(), registration); err != nil {
		t.Error(err)
	}
}

func TestEventsOfAStoreThatIsClosedAreUnavailable(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	store, err := sqlite.Open(t.Context(), d.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = store.Read(t.Context(), outbox.ReadRequest{Relay: "events", AllLanes: 1, Limit: 1})
	wantIs(t, err, idempotency.ErrUnavailable)
	_, err = store.Settle(t.Context(), outbox.Settlement{Relay: "events"})
	wantIs(t, err, idempotency.ErrUnavailable)
	wantIs(t, store.Register(t.Context(), oneLane()), idempotency.ErrUnavailable)
}

// TestEventThatWasDeletedWhileItWasSetAside is a dead letter, and holds up its lane no longer.
func TestEventThatWasDeletedWhileItWasSetAside(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	store := db.open(t, time.Minute)
	r := oneLane()
	r.Lanes = 4
	if err := store.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	lease, err := store.Lease(t.Context(), "events", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	settlement := outbox.Settlement{Relay: "events", Instance: "a"}
	for i, owned := range lease.Lanes {
		owned.Position.Last = 10
		settlement.Lanes = append(settlement.Lanes, outbox.LaneProgress{OwnedLane: owned})
		settlement.Aside = append(settlement.Aside, outbox.Aside{Number: int64(10 - i), Lane: owned.Lane, State: outbox.Retrying, KeyHash: "k"})
	}
	if settled, err := store.Settle(t.Context(), settlement); err != nil || len(settled.Lost) != 0 {
		t.Fatalf("%+v, %v", settled, err)
	}
	due, err := store.Due(t.Context(), "events", []int{2}, 10, 1<<20)
	if err != nil || len(due.Events) != 1 || due.Events[0].Lane != 2 || due.Events[0].Number != 8 || due.Events[0].Invalid == nil {
		t.Fatalf("due is %+v, %v", due, err)
	}
	if err := store.Leave(t.Context(), "events", "a"); err != nil {
		t.Fatal(err)
	}
	if err := store.ChangeLanes(t.Context(), "events", 2); err != nil {
		t.Fatal(err)
	}
	for number := int64(7); number <= 8; number++ {
		if err := store.Skip(t.Context(), "events", number); err != nil {
			t.Fatal(err)
		}
	}
	list, err := store.SetAside(t.Context(), "events", outbox.Filter{Limit: 10})
	if err != nil || len(list) != 2 || list[0].Event.Number != 9 || list[0].Event.Invalid == nil {
		t.Fatalf("set aside are %+v, %v", list, err)
	}
}
