package storetest

import (
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

func settleRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"SavedPositionIsThatOfTheLane", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 20, 20)...)
			moved := a.chunk(outbox.Position{}, a.lanes()...).End
			begin := a.lane(0).Position
			a.move(moved, 1, 3)
			a.save(nil, nil)
			a.renew()
			for lane, want := range []outbox.Position{begin, moved, begin, moved} {
				if got := a.lane(lane).Position; got != want {
					f.Errorf("lane %d stands at %+v, want %+v", lane, got, want)
				}
			}
		}},
		{"PositionInAWindowIsSavedAsItIs", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 9, 9)...)
			a.limit = 5
			chunk := a.chunk(outbox.Position{}, a.lanes()...)
			a.move(chunk.Window.Behind(chunk.Events[1]), a.lanes()...)
			want := a.lane(0).Position
			a.save(nil, nil)
			a.renew()
			if got := a.lane(0).Position; got != want {
				f.Errorf("it stands at %+v, want %+v", got, want)
			}
		}},
		{"ZombieSavesNothing", zombieSavesNothing[Tx]},
		{"SavingTheSameAgainChangesNothing", savedAgain[Tx]},
		{"LostLaneDoesNotTakeOthersAlong", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 40, 40)...)
			events := a.read()
			lost, kept := firstOf(events, 0), firstOf(events, 1)
			a.lane(0).Epoch-- // One that it had before.
			settled := a.settle([]outbox.Aside{asideOf(lost, outbox.Dead, 0), asideOf(kept, outbox.Dead, 0)}, nil)
			if !slices.Equal(settled.Lost, []int{0}) {
				f.Fatalf("lost are %v", settled.Lost)
			}
			f.wantAside(relayName, kept.ID)
			moved := a.lane(1).Position
			a.renew()
			if a.lane(0).Position == moved || a.lane(1).Position != moved || a.lane(3).Position != moved {
				f.Errorf("saved is %+v", a.lease.Lanes)
			}
		}},
		{"RemovedRelayHasLostItsLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			f.must("remove", f.store.Remove(f.Context(), relayName))
			a.read()
			if settled := a.settle(nil, nil); len(settled.Lost) != relayLanes {
				f.Errorf("lost are %v", settled.Lost)
			}
			// And those of one that was made anew are not its own either.
			f.startElsewhere("b", registration()).wantCaughtUp("a")
			if settled := a.settle(nil, nil); len(settled.Lost) != relayLanes {
				f.Errorf("of the new relay, lost are %v", settled.Lost)
			}
		}},
	}
}

// savedAgain: who does not know whether it was saved sends it again, with more.
func savedAgain[Tx any](f *outboxFixture[Tx]) {
	a, line := f.parked("k-1", "k-2", "k-3")
	f.append(eventOf("k-4", "k"), eventOf("j-1", "j"), eventOf("j-2", "j"), eventOf("x", "x"))
	more := a.read()
	aside := asidesOf(more, outbox.Behind, time.Hour)
	aside[1].State, aside[1].Attempts = outbox.Retrying, 1
	aside[3].State = outbox.Dead
	var want []outbox.OwnedLane
	for range 3 {
		if settled := a.save(aside, line[:2]); len(settled.Freed) != 0 {
			f.Errorf("freed is %q", settled.Freed)
		}
		f.wantStates(map[string]outbox.State{
			"k-3": outbox.Retrying, "k-4": outbox.Behind, "j-1": outbox.Retrying, "j-2": outbox.Behind, "x": outbox.Dead,
		})
		f.wantDue(a, 100, "k-3", "k-4")
		before := a.lease
		a.renew()
		if want == nil {
			want = before.Lanes
		}
		if !sameLanes(outbox.Lease{Lanes: want}, a.lease) {
			f.Errorf("it owns %+v, owned %+v", a.lease.Lanes, want)
		}
	}
	// What is set aside may be done, and its key free, when it goes again.
	done := append(slices.Clone(line), aside[0])
	for range 3 {
		if settled := a.save(aside, done); !slices.Equal(settled.Freed, []string{line[0].KeyHash}) {
			f.Errorf("freed is %q", settled.Freed)
		}
		f.wantStates(map[string]outbox.State{"j-1": outbox.Retrying, "j-2": outbox.Behind, "x": outbox.Dead})
	}
	progress := a.progress()
	for i := range progress {
		progress[i].Release = true
	}
	a.settleLanes(progress, aside, done)
	if settled := a.settleLanes(progress, aside, done); len(settled.Lost) != relayLanes || len(settled.Freed) != 0 {
		f.Errorf("released lanes are %+v", settled)
	}
	f.wantStates(map[string]outbox.State{"j-1": outbox.Retrying, "j-2": outbox.Behind, "x": outbox.Dead})
}

// zombieSavesNothing: neither a position nor what it set aside or has done, and
// it does not free a lane that is another's.
func zombieSavesNothing[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", registration())
	f.append(eventOf("a", "k"), eventOf("b", "k"))
	events := a.read()
	a.save([]outbox.Aside{asideOf(events[0], outbox.Retrying, time.Hour)}, nil)
	f.append(eventOf("c", "k"))
	more := a.read()

	f.db.Age(f.T, longLease+time.Minute)
	b := f.startElsewhere("b", registration())
	progress := a.progress()
	for i := range progress {
		progress[i].Release = true
	}
	settled := a.settleLanes(progress, []outbox.Aside{asideOf(more[0], outbox.Dead, 0)}, []outbox.Aside{asideOf(events[0], outbox.Retrying, 0)})
	if got := slices.Sorted(slices.Values(settled.Lost)); !slices.Equal(got, a.lanes()) || len(settled.Freed) != 0 {
		f.Fatalf("settled is %+v", settled)
	}
	before := b.lease
	b.renew()
	if !sameLanes(before, b.lease) {
		f.Errorf("the owner has %+v, had %+v", b.lease, before)
	}
	f.wantAside(relayName, "a")
	b.wantCaughtUp("c")
}

func keyHash(e outbox.Event) string {
	if e.Key == nil {
		return ""
	}
	return outbox.KeyHash(e.Topic, e.Key)
}

// asideOf sets the event aside, due after so long if its state has a due time.
func asideOf(e outbox.Event, state outbox.State, after time.Duration) outbox.Aside {
	return outbox.Aside{Number: e.Number, Lane: e.Lane, State: state, KeyHash: keyHash(e), After: after}
}

func asidesOf(events []outbox.Event, state outbox.State, after time.Duration) []outbox.Aside {
	var asides []outbox.Aside
	for _, event := range events {
		asides = append(asides, asideOf(event, state, after))
	}
	return asides
}

// selected has a limit, as every filter that reaches a store.
func selected(filter outbox.Filter) outbox.Filter {
	if filter.Limit == 0 {
		filter.Limit = 1000
	}
	return filter
}

func (f *outboxFixture[Tx]) setAside(relay string, filter outbox.Filter) []outbox.AsideEvent {
	f.Helper()
	asides, err := f.store.SetAside(f.Context(), relay, selected(filter))
	f.must("list what is set aside", err)
	return asides
}

func idsOfAsides(asides []outbox.AsideEvent) []string {
	ids := []string{}
	for _, aside := range asides {
		ids = append(ids, aside.Event.ID)
	}
	return ids
}

// wantAside fails unless these events are set aside, in this order.
func (f *outboxFixture[Tx]) wantAside(relay string, want ...string) {
	f.Helper()
	if got := idsOfAsides(f.setAside(relay, outbox.Filter{})); !slices.Equal(got, append([]string{}, want...)) {
		f.Fatalf("set aside are %q, want %q", got, want)
	}
}

// states are those of what is set aside, by ID.
func (f *outboxFixture[Tx]) states(relay string) map[string]outbox.State {
	f.Helper()
	states := map[string]outbox.State{}
	for _, aside := range f.setAside(relay, outbox.Filter{}) {
		states[aside.Event.ID] = aside.Aside.State
	}
	return states
}
