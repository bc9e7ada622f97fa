package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

func appendRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"FreshStorePassesCheck", func(f *outboxFixture[Tx]) { f.must("check", f.store.Check(f.Context())) }},
		{"EventsOfACommittedTransactionAreInTheLog", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			tx := f.begin()
			f.appendIn(tx, eventOf("a", "k"), eventOf("b", "j"))
			f.appendIn(tx, eventOf("c", "k"))
			f.wantEvents(a.read()) // None before the commit, and nobody waits for it.
			f.commit(tx)
			a.wantCaughtUp("a", "b", "c")
		}},
		{"EventsOfARolledBackTransactionAreNot", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			tx := f.begin()
			f.appendIn(tx, eventOf("a", "k"))
			f.must("rollback", f.db.Rollback(f.Context(), tx))
			f.append(eventOf("b", "k"))
			a.wantCaughtUp("b")
		}},
		{"EventsThatASavepointTookBackAreNot", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			tx := f.begin()
			f.appendIn(tx, eventOf("a", "k"))
			f.must("roll back to savepoint", f.db.RollBackToSavepoint(f.Context(), tx, func() error {
				return f.store.Append(f.Context(), tx, []outbox.Message{eventOf("b", "k"), eventOf("c", "j")})
			}))
			f.appendIn(tx, eventOf("d", "k"))
			f.commit(tx)
			a.wantCaughtUp("a", "d")
		}},
		{"NumbersAreInTheOrderOfAppend", func(f *outboxFixture[Tx]) {
			oneLane := registration()
			oneLane.Lanes = 1
			messages := numbered("m", 1300, 7)
			tx := f.begin()
			f.appendIn(tx, messages[:1298]...)
			f.appendIn(tx, messages[1298])
			f.commit(tx)
			f.append(messages[1299])
			if got := idsOfEvents(f.start("a", oneLane).read()); !slices.Equal(got, idsOfMessages(messages)) {
				f.Fatalf("%d events, or in another order", len(got))
			}
		}},
		{"EveryByteOfAnEventComesBack", everyByteOfAnEvent[Tx]},
		{"NoMessagesAreNoEvents", func(f *outboxFixture[Tx]) {
			f.append()
			f.start("a", registration()).wantCaughtUp()
		}},
		{"AppendRaisesTheSignal", func(f *outboxFixture[Tx]) {
			raised, stop := f.store.Appended().Listen()
			defer stop()
			f.append(eventOf("a", "k"))
			within(f.T, "the signal", raised)
		}},
		{"EndedTransactionIsToldAndNothingIsWritten", func(f *outboxFixture[Tx]) {
			committed := f.begin()
			f.appendIn(committed, eventOf("a", "k"))
			f.commit(committed)
			rolledBack := f.begin()
			f.must("rollback", f.db.Rollback(f.Context(), rolledBack))
			for _, tx := range []Tx{committed, rolledBack} {
				f.wantIs(f.store.Append(f.Context(), tx, []outbox.Message{eventOf("late", "k")}), f.db.ErrEnded())
			}
			f.start("a", registration()).wantCaughtUp("a")
		}},
		{"CreatedAtIsTheTimeOfWriting", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"))
			f.db.Age(f.T, 3*time.Hour)
			f.append(eventOf("b", "k"))
			events := f.start("a", registration()).read()
			f.wantEvents(events, "a", "b")
			// On the database's clock, which may differ a little from ours.
			if age := time.Since(events[1].CreatedAt).Abs(); age > time.Hour {
				f.Errorf("CreatedAt %v is %v away from now", events[1].CreatedAt, age)
			}
			if apart := events[1].CreatedAt.Sub(events[0].CreatedAt); apart < 3*time.Hour || apart > 4*time.Hour {
				f.Errorf("CreatedAt of the two are %v apart", apart)
			}
		}},
		{"PlainInsertIsAnEvent", plainInsertIsAnEvent[Tx]},
		{"EventThatNoRelayWouldReadIsRefused", func(f *outboxFixture[Tx]) {
			tx := f.begin()
			large := eventOf("a", "k")
			large.Payload = make([]byte, outbox.MaxEventBytes)
			err := f.store.Append(f.Context(), tx, []outbox.Message{large})
			if err == nil || !strings.Contains(err.Error(), strconv.Itoa(outbox.MaxEventBytes)) {
				f.Errorf("a payload of %d bytes and a key: %v", len(large.Payload), err)
			}
			// Text takes six times as much where it is escaped.
			large.Payload, large.Headers = nil, []outbox.Header{{Name: "h", Value: bytes.Repeat([]byte{1}, outbox.MaxEventBytes/5)}}
			err = f.store.Append(f.Context(), tx, []outbox.Message{eventOf("b", "k"), large})
			if err == nil || !strings.Contains(err.Error(), strconv.Itoa(outbox.MaxEventBytes)) {
				f.Errorf("a header of %d control characters: %v", outbox.MaxEventBytes/5, err)
			}
			f.must("roll back", f.db.Rollback(f.Context(), tx))
		}},
		{"RowThatIsTooLargeIsInvalidAndHoldsUpNothing", tooLargeRow[Tx]},
		{"RowThatIsNoEventIsReadAsInvalid", func(f *outboxFixture[Tx]) {
			tx := f.begin()
			f.appendIn(tx, eventOf("a", ""))
			f.must("insert", f.db.InsertInvalid(f.Context(), tx, otherTopic))
			f.appendIn(tx, eventOf("b", ""))
			f.commit(tx)
			oneLane := registration()
			oneLane.Lanes = 1
			events := f.start("a", oneLane).read()
			if len(events) != 3 || events[0].Invalid != nil || events[1].Invalid == nil || events[2].Invalid != nil || events[1].Topic != otherTopic {
				f.Fatalf("got %+v", events)
			}
		}},
	}
}

// tooLargeRow: its payload is never read, nor does it keep others from being read.
func tooLargeRow[Tx any](f *outboxFixture[Tx]) {
	tx := f.begin()
	f.appendIn(tx, eventOf("a", "k"))
	f.must("insert", f.db.InsertLarge(f.Context(), tx, otherTopic, []byte("k"), outbox.MaxEventBytes))
	f.appendIn(tx, eventOf("b", "k"))
	f.must("insert", f.db.InsertLarge(f.Context(), tx, otherTopic, []byte("k"), outbox.MaxEventBytes-1))
	f.commit(tx)
	oneLane := parkingRegistration()
	oneLane.Lanes = 1
	a := f.start("a", oneLane)
	check := func(doing string, e outbox.Event) {
		f.Helper()
		switch {
		case e.Invalid == nil || !strings.Contains(e.Invalid.Error(), strconv.Itoa(outbox.MaxEventBytes+1)):
			f.Fatalf("%s: an event that is too large is %v", doing, e.Invalid)
		case e.Payload != nil || string(e.Key) != "k" || e.Topic != otherTopic:
			f.Fatalf("%s: of it come a payload of %d bytes, key %q and topic %q", doing, len(e.Payload), e.Key, e.Topic)
		}
	}
	events := a.read()
	if len(events) != 4 || events[0].ID != "a" || events[2].ID != "b" {
		f.Fatalf("events %.500q", idsOfEvents(events))
	}
	check("read", events[1])
	if largest := events[3]; largest.Invalid != nil || len(largest.Payload) != outbox.MaxEventBytes-1 {
		f.Fatalf("the largest event there may be has a payload of %d bytes: %v", len(largest.Payload), largest.Invalid)
	}
	a.save(asidesOf(events[:3], outbox.Dead, 0), nil)
	for _, brief := range []bool{false, true} {
		check("list", f.setAside(oneLane.Relay, outbox.Filter{Brief: brief})[1].Event)
	}
	if n, err := f.store.Redrive(f.Context(), oneLane.Relay, outbox.Filter{Limit: 100}); err != nil || n != 3 {
		f.Fatalf("redriven are %d, %v", n, err)
	}
	a.renew()
	due, err := f.store.Due(f.Context(), oneLane.Relay, a.lanes(), 100, 1<<20)
	f.must("due", err)
	if len(due.Events) != 3 {
		f.Fatalf("%d events are due", len(due.Events))
	}
	check("due", due.Events[1])
}

// strangeEvents are valid and hard to keep.
func strangeEvents() []outbox.Message {
	at := time.Now().Add(time.Hour).UTC()
	named := func(headers ...outbox.Header) []outbox.Header { return headers }
	return []outbox.Message{
		{Topic: "t"},
		{Topic: "t", Key: []byte{}, Payload: []byte{}, Headers: named(outbox.Header{Name: "nil"}, outbox.Header{Name: "empty", Value: []byte{}})},
		{Topic: `odd % _ \ ' " é €`, Key: []byte("\x00\xff\x00"), Payload: []byte("\x00\xfe\n{}"), Headers: named(
			outbox.Header{Name: "twice", Value: []byte("1")}, outbox.Header{Name: "Twice", Value: []byte("other")},
			outbox.Header{Name: "twice", Value: []byte("2")}, outbox.Header{Name: `é " \ {},`, Value: []byte("\x00\xff")})},
		{Topic: string(bytes.Repeat([]byte("t"), 512)), Key: []byte("text"), Payload: []byte(`{"a": null}`), DeliverAfter: at},
		{Topic: "t", Key: bytes.Repeat([]byte{0xff}, 1<<20), Payload: bytes.Repeat([]byte{0}, 1<<20), DeliverAfter: at.Add(-48 * time.Hour)},
		{Topic: "t", DeliverAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)},
	}
}

func everyByteOfAnEvent[Tx any](f *outboxFixture[Tx]) {
	messages := strangeEvents()
	for i := range messages {
		messages[i].ID = fmt.Sprintf(`id-%d é ' \`, i)
	}
	messages[0].ID = string(bytes.Repeat([]byte("i"), 512))
	f.append(messages...)
	for _, message := range messages {
		f.append(message)
	}
	oneLane := registration()
	oneLane.Lanes = 1
	events := f.start("a", oneLane).read()
	if len(events) != 2*len(messages) {
		f.Fatalf("%d events", len(events))
	}
	for i, event := range events {
		want := messages[i%len(messages)]
		if got := eventDifference(event, want); got != "" {
			f.Errorf("event %d: %s, want that of %.100q", i, got, want.Topic)
		}
		if due := !want.DeliverAfter.After(time.Now()); due != (event.Waits <= 0) {
			f.Errorf("event %d with DeliverAfter %v waits %v", i, want.DeliverAfter, event.Waits)
		}
	}
	if waits := events[3].Waits; waits > time.Hour+time.Minute || waits < 50*time.Minute {
		f.Errorf("an event that is due in an hour waits %v", waits)
	}
}

// eventDifference names the first field in which an event differs from what was
// appended. Nil and empty differ, but for the list of headers; times may be cut or
// rounded to the microsecond.
func eventDifference(got outbox.Event, want outbox.Message) string {
	sameBytes := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	switch {
	case got.Invalid != nil:
		return fmt.Sprintf("it is invalid: %v", got.Invalid)
	case got.ID != want.ID:
		return fmt.Sprintf("ID is %.60q", got.ID)
	case got.Topic != want.Topic:
		return fmt.Sprintf("Topic is %.60q", got.Topic)
	case !sameBytes(got.Key, want.Key):
		return fmt.Sprintf("Key is %.60q (nil: %t)", got.Key, got.Key == nil)
	case !sameBytes(got.Payload, want.Payload):
		return fmt.Sprintf("Payload has %d bytes (nil: %t)", len(got.Payload), got.Payload == nil)
	case got.DeliverAfter.IsZero() != want.DeliverAfter.IsZero(), got.DeliverAfter.Sub(want.DeliverAfter).Abs() >= time.Microsecond:
		return fmt.Sprintf("DeliverAfter is %v", got.DeliverAfter)
	case !slices.EqualFunc(got.Headers, want.Headers, func(a, b outbox.Header) bool {
		return a.Name == b.Name && sameBytes(a.Value, b.Value)
	}):
		return fmt.Sprintf("Headers are %q", got.Headers)
	case got.Attempts != 0:
		return fmt.Sprintf("Attempts is %d", got.Attempts)
	}
	return ""
}

func plainInsertIsAnEvent[Tx any](f *outboxFixture[Tx]) {
	plain := []outbox.Message{
		{Topic: topic, Key: []byte("k"), Payload: []byte(`{"plain": true}`)},
		{Topic: topic, Key: []byte("\x00\xff"), Payload: []byte("\xff\x00")},
		{Topic: topic},
		{Topic: topic, Key: []byte{}, Payload: []byte{}},
	}
	tx := f.begin()
	f.appendIn(tx, eventOf("appended", "k"))
	for _, m := range plain {
		f.must("insert", f.db.InsertPlain(f.Context(), tx, m.Topic, m.Key, m.Payload))
	}
	f.commit(tx)
	events := f.start("a", registration()).read()
	if len(events) != 1+len(plain) {
		f.Fatalf("%d events", len(events))
	}
	ids := map[string]bool{}
	for i, event := range events[1:] {
		if event.ID == "" || ids[event.ID] {
			f.Errorf("ID %q", event.ID)
		}
		ids[event.ID] = true
		want := plain[i]
		want.ID = event.ID
		if got := eventDifference(event, want); got != "" {
			f.Errorf("event %d: %s", i, got)
		}
	}
	if events[0].Lane != events[1].Lane {
		f.Errorf("events of one key are in lanes %d and %d", events[0].Lane, events[1].Lane)
	}
}
