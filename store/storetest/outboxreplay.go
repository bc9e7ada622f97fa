package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

func replayRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"EventAndAllLaterOnesArePublishedAgain", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 6, 6)...)
			events := a.catchUp()
			f.replay(events[3].Number)
			a.wantCaughtUp("m-3", "m-4", "m-5")
			a.wantCaughtUp()
			f.append(eventOf("new", "k"))
			f.replay(events[5].Number)
			a.wantCaughtUp("m-5", "new")
			f.replay(0)
			a.wantCaughtUp("m-0", "m-1", "m-2", "m-3", "m-4", "m-5", "new")
			f.replay(events[0].Number)
			f.replay(events[4].Number) // What the first asked for is not taken back.
			a.wantCaughtUp("m-0", "m-1", "m-2", "m-3", "m-4", "m-5", "new")
		}},
		{"WhatWasNotPublishedStillIs", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 6, 6)...)
			a.limit = 2
			chunk := a.chunk(outbox.Position{}, a.lanes()...)
			a.move(chunk.End, a.lanes()...)
			a.save(nil, nil)
			f.replay(chunk.Events[1].Number + 3)
			a.wantCaughtUp("m-2", "m-3", "m-4", "m-5")
		}},
		{"ReplayFromWhereTheLogHasNotComeIsRefused", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			last := a.catchUp()[0].Number
			for _, from := range []int64{last + 2, 1 << 62} {
				err := f.store.Replay(f.Context(), relayName, from)
				if !errors.Is(err, outbox.ErrNoEvent) || !strings.Contains(err.Error(), fmt.Sprintf("the last one is %d", last)) {
					f.Errorf("replay from %d: %v", from, err)
				}
			}
			if settled := a.settle(nil, nil); len(settled.Lost) != 0 {
				f.Errorf("lost are %v, though nothing changed", settled.Lost)
			}
			// Nothing since tomorrow: that is the next number, and all right.
			next, err := f.store.FirstSince(f.Context(), time.Now().Add(24*time.Hour))
			if f.must("first since", err); next != last+1 {
				f.Errorf("the first one since tomorrow is %d, the last %d", next, last)
			}
			f.replay(next)
			f.append(eventOf("new", "k"))
			a.wantCaughtUp("new")
		}},
		{"ReplayInsideAWindowLosesNothing", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 6, 6)...)
			first := a.catchUp()
			f.append(numbered("n", 6, 6)...)
			a.limit = 2
			chunk := a.chunk(outbox.Position{}, a.lanes()...)
			a.move(chunk.End, a.lanes()...)
			a.save(nil, nil)
			f.replay(first[5].Number)
			a.renew()
			a.limit = 3
			chunk = a.chunk(outbox.Position{}, a.lanes()...)
			a.move(chunk.End, a.lanes()...)
			f.append(eventOf("new", "k"))
			a.save(nil, nil)
			got := slices.Sorted(slices.Values(idsOfEvents(append(chunk.Events, a.catchUp()...))))
			if want := []string{"m-5", "n-0", "n-1", "n-2", "n-3", "n-4", "n-5", "new"}; !slices.Equal(slices.Compact(got), want) {
				f.Fatalf("read are %q, want %q", got, want)
			}
		}},
		{"EventsStillOpenAreNotLostByAReplay", replayWithOpenTransactions[Tx]},
		{"OwnersLearnOfIt", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.catchUp()
			f.replay(0)
			if settled := a.settle(nil, nil); len(settled.Lost) != relayLanes {
				f.Fatalf("lost are %v", settled.Lost)
			}
			before := a.lease
			a.renew()
			for _, lane := range a.lease.Lanes {
				for _, old := range before.Lanes {
					if old.Lane == lane.Lane && lane.Epoch <= old.Epoch {
						f.Errorf("lane %d has epoch %d, had %d", lane.Lane, lane.Epoch, old.Epoch)
					}
				}
			}
			a.wantCaughtUp("a")
		}},
		{"WhatIsSetAsideAmongThemIsReadAgain", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("dead", "k"), eventOf("delayed", "j"), eventOf("behind", "k"), eventOf("retrying", ""), eventOf("plain", ""))
			asides := asidesOf(a.read(), outbox.Dead, 0)
			asides[1].State, asides[1].After = outbox.Delayed, time.Hour
			asides[2].State = outbox.Behind
			asides[3].State, asides[3].After = outbox.Retrying, time.Hour
			a.save(asides[:4], nil)
			f.replay(asides[2].Number)
			f.wantStates(map[string]outbox.State{"dead": outbox.Dead, "delayed": outbox.Delayed})
			a.wantCaughtUp("behind", "retrying", "plain")
			f.replay(asides[0].Number)
			f.wantStates(map[string]outbox.State{})
			a.wantCaughtUp("dead", "delayed", "behind", "retrying", "plain")
		}},
		{"NothingStaysBehindWhatIsReadAgain", func(f *outboxFixture[Tx]) {
			// An event that was delayed can be behind one with a larger number.
			a := f.start("a", parkingRegistration())
			f.append(eventOf("delayed", "k"), eventOf("dead", "k"))
			asides := asidesOf(a.read(), outbox.Behind, 0)
			asides[1].State = outbox.Dead
			a.save(asides, nil)
			f.replay(asides[1].Number)
			f.wantStates(map[string]outbox.State{"delayed": outbox.Retrying})
			a.renew()
			f.wantDue(a, 100, "delayed")
		}},
		{"OtherRelaysAreNotReplayed", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			f.append(eventOf("a", "k"))
			a, b := f.start("a", registration()), f.start("b", other)
			a.catchUp()
			b.save(asidesOf(b.catchUp(), outbox.Dead, 0), nil)
			f.replay(0)
			a.wantCaughtUp("a")
			b.wantCaughtUp()
			f.wantAside("other", "a")
		}},
		{"FirstSinceIsTheFirstEventWrittenThen", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"), eventOf("b", "k"))
			f.db.Age(f.T, 2*time.Hour)
			f.append(eventOf("c", "k"), eventOf("d", "k"))
			events := f.start("a", registration()).read()
			last := events[3].CreatedAt
			for _, c := range []struct {
				since time.Time
				want  int64
			}{
				{time.Time{}, events[0].Number},
				{events[0].CreatedAt, events[0].Number},
				{last.Add(-time.Hour), events[2].Number},
				{last.Add(time.Hour), events[3].Number + 1},
				{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), events[3].Number + 1},
			} {
				got, err := f.store.FirstSince(f.Context(), c.since)
				if err != nil || got != c.want {
					f.Errorf("since %v: %d, %v, want %d", c.since, got, err, c.want)
				}
			}
		}},
		{"FirstSinceOfAnEmptyLogIsItsEnd", func(f *outboxFixture[Tx]) {
			from, err := f.store.FirstSince(f.Context(), time.Time{})
			f.must("first since", err)
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.catchUp()
			f.replay(from)
			a.wantCaughtUp("a")
		}},
	}
}

func (f *outboxFixture[Tx]) replay(from int64) {
	f.Helper()
	f.must("replay", f.store.Replay(f.Context(), relayName, from))
}

// replayWithOpenTransactions: one that was open when the relay was set back, and
// has smaller and larger numbers than those it was set back to.
func replayWithOpenTransactions[Tx any](f *outboxFixture[Tx]) {
	if f.db.OneWriter() {
		return // Nothing can be open while the relay is written.
	}
	a := f.start("a", registration())
	f.append(eventOf("first", "k"))
	open := f.begin()
	f.appendIn(open, eventOf("early", "k"))
	f.append(eventOf("a", "k"), eventOf("b", "k"))
	f.appendIn(open, eventOf("middle", "k"))
	f.append(eventOf("c", "k"))
	events := a.catchUp()
	f.wantEvents(events, "first", "a", "b", "c")

	f.replay(events[2].Number)
	a.wantCaughtUp("b", "c")
	f.replay(events[2].Number)
	a.renew()
	a.limit = 1
	a.move(a.chunk(outbox.Position{}, a.lanes()...).End, a.lanes()...) // b
	f.commit(open)
	a.limit = 1000
	got := idsOfEvents(a.read())
	// What was open comes exactly once; c comes as asked for.
	counts := map[string]int{}
	for _, id := range got {
		counts[id]++
	}
	if len(got) != 3 || counts["early"] != 1 || counts["middle"] != 1 || counts["c"] != 1 {
		f.Fatalf("then come %q", got)
	}
	a.save(nil, nil)
	a.wantCaughtUp()
}
