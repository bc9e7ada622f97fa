package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

func readRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"LimitBoundsAChunkAndMoreFollows", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			a.limit = 3
			f.append(numbered("m", 10, 4)...)
			chunk := a.chunk(outbox.Position{}, 0, 1, 2, 3)
			if len(chunk.Events) != 3 || !chunk.More {
				f.Fatalf("%d events, more: %t", len(chunk.Events), chunk.More)
			}
			a.wantCaughtUp(idsOfMessages(numbered("m", 10, 4))...)
		}},
		{"BytesBoundAChunkButOneEventIsReturned", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			messages := numbered("m", 10, 4)
			for i := range messages {
				messages[i].Payload = bytes.Repeat([]byte("p"), 10_000)
			}
			f.append(messages...)
			a.maxBytes = 35_000
			if chunk := a.chunk(outbox.Position{}, 0, 1, 2, 3); len(chunk.Events) < 1 || len(chunk.Events) > 3 || !chunk.More {
				f.Fatalf("%d events of 10 kB with a bound of 35 kB, more: %t", len(chunk.Events), chunk.More)
			}
			a.maxBytes = 1
			if chunk := a.chunk(outbox.Position{}, 0, 1, 2, 3); len(chunk.Events) != 1 || !chunk.More {
				f.Fatalf("%d events with a bound of one byte, more: %t", len(chunk.Events), chunk.More)
			}
			a.wantCaughtUp(idsOfMessages(messages)...)
		}},
		{"EachEventIsInOneLane", eachEventIsInOneLane[Tx]},
		{"EventsOfAKeyAreInOneLane", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			first, second := numbered("first", 100, 100), numbered("second", 100, 100)
			for i := range second {
				second[i].Topic = otherTopic
			}
			f.append(first...)
			f.append(second...)
			lanes := map[string]int{}
			for _, event := range a.read() {
				if lane, ok := lanes[string(event.Key)]; ok && lane != event.Lane {
					f.Fatalf("key %q is in lanes %d and %d", event.Key, lane, event.Lane)
				}
				lanes[string(event.Key)] = event.Lane
			}
		}},
		{"KeysSpreadOverTheLanes", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Lanes = 16
			a := f.start("a", r)
			f.append(numbered("m", 1600, 1600)...)
			counts := make([]int, r.Lanes)
			for _, event := range a.read() {
				counts[event.Lane]++
			}
			if slices.Min(counts) < 40 || slices.Max(counts) > 200 {
				f.Errorf("1600 keys are spread over 16 lanes as %v", counts)
			}
		}},
		{"NothingToPassLeavesThePosition", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.read()
			// Work of others on the same server may be something to pass.
			for end := time.Now().Add(soon); ; {
				chunk := a.chunk(outbox.Position{}, a.lanes()...)
				if len(chunk.Events) != 0 || chunk.More {
					f.Fatalf("%d events, more: %t", len(chunk.Events), chunk.More)
				}
				if chunk.End == a.lane(0).Position {
					return
				}
				if time.Now().After(end) {
					f.Fatalf("from %+v it goes on to %+v", a.lane(0).Position, chunk.End)
				}
				a.move(chunk.End, a.lanes()...)
			}
		}},
		{"PositionBehindAnEventIsRightBehindIt", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 7, 4)...)
			begin := a.lane(0).Position
			a.limit = 4
			first := a.chunk(outbox.Position{}, a.lanes()...)
			a.move(first.End, a.lanes()...)
			second := a.chunk(outbox.Position{}, a.lanes()...)
			all := append(slices.Clone(first.Events), second.Events...)
			for i := range all {
				a.move(begin, a.lanes()...)
				if window := first.Window; i < 4 {
					a.move(window.Behind(all[i]), a.lanes()...)
				} else {
					a.move(second.Window.Behind(all[i]), a.lanes()...)
				}
				f.wantEvents(a.read(), idsOfEvents(all[i+1:])...)
			}
		}},
		{"NextOwnerResumesBehindWhatWasSaved", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 9, 9)...)
			a.limit = 5
			chunk := a.chunk(outbox.Position{}, a.lanes()...)
			a.move(chunk.Window.Behind(chunk.Events[2]), a.lanes()...)
			a.save(nil, nil)
			f.append(eventOf("later", "k"))
			f.must("leave", f.store.Leave(f.Context(), relayName, a.name))
			b := f.startElsewhere("b", registration())
			b.limit = 2
			b.wantCaughtUp("m-3", "m-4", "m-5", "m-6", "m-7", "m-8", "later")
		}},
		{"LanesReadUntilOthersStandMeetThem", lanesMeet[Tx]},
		{"OpenTransactionDelaysItsOwnEventsOnly", func(f *outboxFixture[Tx]) {
			if f.db.OneWriter() {
				return
			}
			a := f.start("a", registration())
			early, late := f.begin(), f.begin()
			f.appendIn(early, eventOf("early", "k"))
			f.append(eventOf("a", "k"))
			f.appendIn(late, eventOf("late", "k"))
			f.append(eventOf("b", "k"))
			a.wantCaughtUp("a", "b")
			a.wantCaughtUp()
			f.commit(late)
			a.wantCaughtUp("late")
			f.append(eventOf("c", "k"))
			f.commit(early)
			a.wantCaughtUp("early", "c")
			a.wantCaughtUp()
		}},
		{"EventsCommittedDuringAWindowComeAfterIt", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			a.limit = 1
			var want []string
			var got []outbox.Event
			f.append(numbered("m", 5, 5)...)
			for i := range 5 {
				want = append(want, fmt.Sprintf("m-%d", i))
			}
			for i := range 5 {
				chunk := a.chunk(outbox.Position{}, a.lanes()...)
				got = append(got, chunk.Events...)
				a.move(chunk.End, a.lanes()...)
				id := fmt.Sprintf("new-%d", i)
				f.append(eventOf(id, fmt.Sprintf("key-%d", i)))
				want = append(want, id)
			}
			f.wantEvents(append(got, a.read()...), want...)
		}},
	}
}

// eachEventIsInOneLane, with any number of lanes and in groups of any size.
func eachEventIsInOneLane[Tx any](f *outboxFixture[Tx]) {
	messages := numbered("m", 60, 50)
	for i := range 20 {
		messages = append(messages, eventOf(fmt.Sprintf("keyless-%d", i), ""))
	}
	f.append(messages...)
	for _, lanes := range []int{1, 2, 5, 16, 1024} {
		r := registration()
		r.Relay, r.Lanes = fmt.Sprintf("relay-%d", lanes), lanes
		a := f.start("a", r)
		all := a.lanes()
		if len(all) != lanes || all[0] != 0 || all[lanes-1] != lanes-1 {
			f.Fatalf("of %d lanes it owns %v", lanes, all)
		}
		var got []string
		for group := range slices.Chunk(all, max(1, lanes/4)) {
			chunk := a.chunk(outbox.Position{}, group...)
			got = append(got, idsOfEvents(chunk.Events)...)
			a.move(chunk.End, group...)
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(idsOfMessages(messages)))
		if !slices.Equal(got, want) {
			f.Errorf("from %d lanes in groups come %d events, want %d", lanes, len(got), len(want))
		}
	}
}

// lanesMeet: lanes that fell behind read up to where the others stand, and not
// beyond, and then stand at an equal position.
func lanesMeet[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", registration())
	f.append(numbered("first", 20, 20)...)
	ahead, behind := []int{0, 1}, []int{2, 3}
	begin := a.chunk(outbox.Position{}, ahead...)
	f.append(numbered("second", 20, 20)...)
	a.move(begin.End, ahead...)
	passed := idsOfEvents(begin.Events)
	for {
		chunk := a.chunk(outbox.Position{}, ahead...)
		passed = append(passed, idsOfEvents(chunk.Events)...)
		a.move(chunk.End, ahead...)
		if !chunk.More {
			break
		}
	}
	until := a.lane(0).Position
	f.append(numbered("third", 20, 20)...)

	a.limit = 3
	for reads := 0; a.lane(2).Position != until; reads++ {
		if reads > 100 {
			f.Fatalf("they stand at %+v, the others at %+v", a.lane(2).Position, until)
		}
		chunk := a.chunk(until, behind...)
		passed = append(passed, idsOfEvents(chunk.Events)...)
		a.move(chunk.End, behind...)
	}
	slices.Sort(passed)
	want := slices.Sorted(slices.Values(append(idsOfMessages(numbered("first", 20, 20)), idsOfMessages(numbered("second", 20, 20))...)))
	if !slices.Equal(passed, want) {
		f.Fatalf("up to there come %.900q", passed)
	}
	a.limit = 1000
	f.wantEvents(a.read(), idsOfMessages(numbered("third", 20, 20))...)
}

func topicRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"PatternsMatchAnyCharactersByStarsAndAllElseLiterally", patternsMatch[Tx]},
		{"EventsOfOtherTopicsArePassed", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Topics = []string{topic}
			a := f.start("a", r)
			other := eventOf("other", "k")
			other.Topic = otherTopic
			f.append(other, eventOf("a", "k"), other)
			a.limit = 1
			a.wantCaughtUp("a")
			a.wantCaughtUp()
			f.append(other)
			a.wantCaughtUp()
			f.append(other, eventOf("b", "k"))
			a.wantCaughtUp("b")
		}},
	}
}

func patternsMatch[Tx any](f *outboxFixture[Tx]) {
	topics := []string{
		"orders", "Orders", "orders.eu", "orders.eu.new", "order", "refunds.eu", "100%", "1000", "a_b", "aXb", `a\b`, `a\\b`, "a*b", "[a]", "a", "a?b", "éa", "a b",
		"{orders,refunds}", "orders\n", ".", "+", "$^|()",
	}
	messages := make([]outbox.Message, len(topics))
	for i, name := range topics {
		messages[i] = outbox.Message{ID: name, Topic: name}
	}
	f.append(messages...)
	for i, c := range []struct {
		patterns []string
		want     []string
	}{
		{nil, topics},
		{[]string{"*"}, topics},
		{[]string{"orders"}, []string{"orders"}},
		{[]string{"orders*"}, []string{"orders", "orders.eu", "orders.eu.new", "orders\n"}},
		{[]string{"orders.*"}, []string{"orders.eu", "orders.eu.new"}},
		{[]string{"*.eu"}, []string{"orders.eu", "refunds.eu"}},
		{[]string{"*.*.*", "o*r"}, []string{"orders.eu.new", "order"}},
		{[]string{"100%"}, []string{"100%"}},
		{[]string{"%"}, nil},
		{[]string{"a_b"}, []string{"a_b"}},
		{[]string{`a\b`}, []string{`a\b`}},
		{[]string{`a\\b`}, []string{`a\\b`}},
		{[]string{`a\*`}, []string{`a\b`, `a\\b`}},
		{[]string{`*\*b`}, []string{`a\b`, `a\\b`}},
		{[]string{"a*b"}, []string{"a_b", "aXb", `a\b`, `a\\b`, "a*b", "a?b", "a b"}},
		{[]string{"[a]"}, []string{"[a]"}},
		{[]string{"[*"}, []string{"[a]"}},
		{[]string{"a?b"}, []string{"a?b"}},
		{[]string{"é*"}, []string{"éa"}},
		{[]string{"{orders,refunds}"}, []string{"{orders,refunds}"}},
		{[]string{"."}, []string{"."}},
		{[]string{"+", "$^|()"}, []string{"+", "$^|()"}},
		{[]string{"orders", "orders*", "*"}, topics},
		{[]string{"nothing", "no*"}, nil},
	} {
		r := registration()
		r.Relay, r.Topics = fmt.Sprintf("relay-%d", i), c.patterns
		slices.Sort(r.Topics)
		a := f.start("a", r)
		if got := idsOfEvents(a.read()); !slices.Equal(got, append([]string{}, c.want...)) {
			f.Errorf("patterns %q match %q, want %q", c.patterns, got, c.want)
		}
	}
}
