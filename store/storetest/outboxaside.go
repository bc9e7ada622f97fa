package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

func asideRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"WhatIsSetAsideIsListedAsItIs", listedAsItIs[Tx]},
		{"EventIsWhatWasAppended", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			messages := strangeEvents()
			for i := range messages {
				messages[i].ID = fmt.Sprintf("id-%d", i)
			}
			f.append(messages...)
			a.save(asidesOf(a.read(), outbox.Delayed, 0), nil)
			for i, aside := range f.setAside(relayName, outbox.Filter{}) {
				if got := eventDifference(aside.Event, messages[i]); got != "" {
					f.Errorf("listed event %d: %s", i, got)
				}
			}
			due, err := f.store.Due(f.Context(), relayName, a.lanes(), 100, 1<<23)
			f.must("due", err)
			if len(due.Events) != len(messages) {
				f.Fatalf("%d are due", len(due.Events))
			}
			for _, event := range due.Events {
				i := slices.Index(idsOfMessages(messages), event.ID)
				if got := eventDifference(event, messages[i]); got != "" {
					f.Errorf("due event %d: %s", i, got)
				}
			}
		}},
		{"SettingAsideAgainChangesIt", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("a", "k"), eventOf("b", "k"))
			events := a.read()
			first := asideOf(events[0], outbox.Retrying, time.Hour)
			first.Attempts, first.Error = 1, "timeout"
			a.save([]outbox.Aside{first, asideOf(events[1], outbox.Behind, 0)}, nil)
			f.db.Age(f.T, time.Hour)
			first.State, first.Attempts, first.Error, first.After = outbox.Dead, 2, "refused", 0
			a.save([]outbox.Aside{first}, nil)
			got := f.setAside(relayName, outbox.Filter{})
			if len(got) != 2 || got[0].Aside.State != outbox.Dead || got[0].Aside.Attempts != 2 || got[0].Aside.Error != "refused" || !got[0].Due.IsZero() {
				f.Fatalf("got %+v", got)
			}
			if got[1].Aside.State != outbox.Behind || got[1].Aside.Attempts != 0 {
				f.Errorf("its neighbour changed: %+v", got[1].Aside)
			}
		}},
		{"LongAndStrangeErrorsAreKept", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"), eventOf("b", "k"))
			events := a.read()
			long, strange := asideOf(events[0], outbox.Dead, 0), asideOf(events[1], outbox.Dead, 0)
			long.Error = strings.Repeat("é", 4<<10)
			strange.Error = "nul \x00, \xff"
			a.save([]outbox.Aside{long, strange}, nil)
			got := f.setAside(relayName, outbox.Filter{})
			if got[0].Aside.Error != long.Error || !strings.HasPrefix(got[1].Aside.Error, "nul ") {
				f.Errorf("got %.50q and %.50q", got[0].Aside.Error, got[1].Aside.Error)
			}
		}},
		{"DoneIsNotSetAsideAnyMore", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 4, 4)...)
			events := a.read()
			a.save(asidesOf(events, outbox.Delayed, time.Hour), nil)
			a.save(nil, asidesOf(events[1:3], outbox.Delayed, 0))
			f.wantAside(relayName, "m-0", "m-3")
			a.wantCaughtUp()
		}},
		{"RelaysSetAsideApart", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			a, b := f.start("a", registration()), f.start("b", other)
			f.append(eventOf("a", "k"))
			events := a.read()
			b.read()
			a.save(asidesOf(events, outbox.Dead, 0), nil)
			b.save(asidesOf(events, outbox.Delayed, time.Hour), nil)
			b.save(nil, asidesOf(events, outbox.Delayed, 0))
			f.wantAside(relayName, "a")
			f.wantAside("other")
		}},
		{"HeldIsWhatHasASay", heldIsWhatHasASay[Tx]},
		{"HeldIsWhatItsLaneHasNotPassed", heldAhead[Tx]},
		{"HeldIsThatOfTheLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 40, 40)...)
			events := a.read()
			a.save(asidesOf(events, outbox.Retrying, time.Hour), nil)
			for lane := range relayLanes {
				held, err := f.store.Held(f.Context(), relayName, []int{lane})
				f.must("held", err)
				want := 0
				for _, event := range events {
					if event.Lane == lane {
						want++
					}
				}
				if len(held) != want || slices.ContainsFunc(held, func(h outbox.Aside) bool { return h.Lane != lane }) {
					f.Errorf("lane %d holds %d, want %d", lane, len(held), want)
				}
			}
		}},
	}
}

func listedAsItIs[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", parkingRegistration())
	f.append(eventOf("delayed", "d"), eventOf("retrying", "k"), eventOf("behind", "k"), eventOf("dead", ""), eventOf("skipped", "s"))
	asides := asidesOf(a.read(), outbox.Delayed, time.Hour)
	asides[1].State, asides[1].After, asides[1].Attempts, asides[1].Error = outbox.Retrying, time.Minute, 3, "broker said: no"
	asides[2].State, asides[2].After = outbox.Behind, 0
	asides[3].State, asides[3].After, asides[3].Attempts, asides[3].Error = outbox.Dead, 0, 10, "line one\nline two: é €"
	asides[4].State, asides[4].After = outbox.Skipped, 0
	a.save(asides, nil)

	got := f.setAside(relayName, outbox.Filter{})
	if len(got) != len(asides) {
		f.Fatalf("%d are set aside", len(got))
	}
	for i, aside := range got {
		want := asides[i]
		if due := aside.Due; due.IsZero() != (want.After == 0) || !due.IsZero() && (due.Sub(aside.SetAsideAt)-want.After).Abs() > time.Second {
			f.Errorf("%s is due at %v, set aside at %v", want.State, due, aside.SetAsideAt)
		}
		if age := time.Since(aside.SetAsideAt).Abs(); age > time.Hour {
			f.Errorf("%s was set aside %v ago", want.State, age)
		}
		if want.After > 0 {
			f.wantAbout(aside.Aside.After, want.After)
		}
		aside.Aside.After, want.After = 0, 0
		if aside.Aside != want || aside.Event.Number != want.Number || aside.Event.Lane != want.Lane || aside.Event.ID != string(want.State) || aside.Event.Attempts != want.Attempts {
			f.Errorf("got %+v, want %+v", aside, want)
		}
	}
}

func heldIsWhatHasASay[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", parkingRegistration())
	set := []struct {
		id, key string
		state   outbox.State
	}{
		{"delayed", "d", outbox.Delayed},
		{"delayed keyless", "", outbox.Delayed},
		{"skipped", "s", outbox.Skipped},
		{"skipped keyless", "", outbox.Skipped},
		{"retrying", "r", outbox.Retrying},
		{"behind retrying", "r", outbox.Behind},
		{"also behind retrying", "r", outbox.Behind},
		{"retrying keyless", "", outbox.Retrying},
		{"dead", "x", outbox.Dead},
		{"behind dead", "x", outbox.Behind},
		{"dead keyless", "", outbox.Dead},
		{"dead alone", "y", outbox.Dead},
	}
	messages := make([]outbox.Message, len(set))
	for i, s := range set {
		messages[i] = eventOf(s.id, s.key)
	}
	f.append(messages...)
	asides := asidesOf(a.read(), outbox.Delayed, time.Hour)
	names := map[int64]string{}
	for i, s := range set {
		asides[i].State = s.state
		names[asides[i].Number] = s.id
	}
	a.save(asides, nil)

	held, err := f.store.Held(f.Context(), relayName, a.lanes())
	f.must("held", err)
	keys, others := map[string]int{}, []string{}
	for _, h := range held {
		if i := slices.IndexFunc(asides, func(x outbox.Aside) bool { return x.Number == h.Number }); i < 0 ||
			h.Lane != asides[i].Lane || h.State != asides[i].State || h.KeyHash != asides[i].KeyHash {
			f.Errorf("held is %+v", h)
		}
		if h.Ahead {
			f.Errorf("%q was passed", names[h.Number])
		}
		if h.State == outbox.Retrying || h.State == outbox.Skipped {
			others = append(others, names[h.Number])
		}
		if h.KeyHash != "" && h.State != outbox.Skipped {
			keys[h.KeyHash]++
		}
		if h.State == outbox.Retrying {
			f.wantAbout(h.After, time.Hour)
		}
		if h.State == outbox.Delayed || h.State == outbox.Dead && h.KeyHash == "" {
			f.Errorf("%q has no say", names[h.Number])
		}
	}
	slices.Sort(others)
	if want := []string{"retrying", "retrying keyless", "skipped", "skipped keyless"}; !slices.Equal(others, want) {
		f.Errorf("held are %q, want %q and the keys", others, want)
	}
	for _, key := range []string{"r", "x", "y"} {
		if n := keys[outbox.KeyHash(topic, []byte(key))]; n == 0 {
			f.Errorf("nothing of key %q is held", key)
		}
	}
	if len(keys) != 3 {
		f.Errorf("held are keys %q", slices.Sorted(maps.Keys(keys)))
	}
	none, err := f.store.Held(f.Context(), relayName, nil)
	if err != nil || len(none) != 0 {
		f.Errorf("of no lanes: %v, %v", none, err)
	}
}

// heldAhead: what was set aside while an older event of its lane was still to be
// published is read again by the next owner, who must know.
func heldAhead[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", parkingRegistration())
	writeLate := func() (commit func()) {
		late := f.begin()
		f.appendIn(late, eventOf("late", "k"))
		return func() { f.commit(late) }
	}
	commitLate := func() { writeLate()() }
	if !f.db.OneWriter() {
		commitLate = writeLate()
	}
	f.append(eventOf("passed", "k"), eventOf("also passed", "k"))
	passed := a.read()
	a.save(asidesOf(passed, outbox.Delayed, time.Hour), nil)
	a.wantHeld(nil)
	commitLate()

	states := []outbox.State{outbox.Delayed, outbox.Retrying, outbox.Behind, outbox.Dead, outbox.Skipped}
	want := map[string]bool{"late": true}
	for _, state := range states {
		f.append(eventOf(string(state), "k"))
		want[string(state)] = true
	}
	f.append(eventOf("to be published", "k"), eventOf("keyless", ""))
	want["keyless"] = true
	chunk := a.chunk(outbox.Position{}, a.lanes()...)
	var asides []outbox.Aside
	for _, e := range chunk.Events {
		state := outbox.State(e.ID)
		if !slices.Contains(states, state) {
			state = outbox.Dead
		}
		if e.ID != "to be published" {
			asides = append(asides, asideOf(e, state, time.Hour))
		}
	}
	// Nothing is passed, then a window is begun, then all but its last events are, then all.
	a.save(asides, nil)
	a.wantHeld(want)
	for n, e := range chunk.Events {
		a.move(chunk.Window.Behind(e), a.lanes()...)
		a.save(nil, nil)
		want[e.ID] = false
		a.wantHeld(want)
		if n == 3 {
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			a.renew()
			a.wantHeld(want)
		}
	}
	a.move(chunk.End, a.lanes()...)
	a.save(nil, nil)
	a.wantHeld(nil)
}

// wantHeld fails unless these IDs, and only these, are held as ahead of their lanes, each once.
func (i *instance[Tx]) wantHeld(want map[string]bool) {
	i.f.Helper()
	held, err := i.store.Held(i.f.Context(), i.relay.Relay, i.lanes())
	i.f.must("held", err)
	ids := map[int64]string{}
	for _, aside := range i.f.setAside(i.relay.Relay, outbox.Filter{}) {
		ids[aside.Aside.Number] = aside.Event.ID
	}
	got, seen := []string{}, map[int64]bool{}
	for _, h := range held {
		if seen[h.Number] {
			i.f.Errorf("%q is held twice", ids[h.Number])
		}
		seen[h.Number] = true
		if h.Ahead {
			got = append(got, ids[h.Number])
		}
	}
	sorted := []string{}
	for id, ahead := range want {
		if ahead {
			sorted = append(sorted, id)
		}
	}
	slices.Sort(got)
	slices.Sort(sorted)
	if !slices.Equal(got, sorted) {
		i.f.Fatalf("held ahead are %q, want %q", got, sorted)
	}
}
