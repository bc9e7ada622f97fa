package storetest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/outbox"
)

const (
	abandonAfter = 7 * 24 * time.Hour
	old          = 25 * time.Hour // beyond the retention of registration
)

func pruneLogRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"EventsThatWerePassedLiveForTheRetention", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 5, 5)...)
			a.catchUp()
			f.db.Age(f.T, 23*time.Hour)
			f.wantPruned(100, 0)
			f.replay(0)
			a.catchUp()
			f.db.Age(f.T, 2*time.Hour)
			f.append(eventOf("young", "k"))
			a.catchUp()
			f.wantPruned(100, 5)
			f.replay(0)
			a.wantCaughtUp("young")
		}},
		{"EventsThatWereNotPassedStay", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			a, b := f.start("a", registration()), f.start("b", other)
			f.append(numbered("m", 5, 5)...)
			a.catchUp()
			f.db.Age(f.T, old)
			f.wantPruned(100, 0)
			b.wantCaughtUp(idsOfMessages(numbered("m", 5, 5))...)
			f.wantPruned(100, 5)
		}},
		{"EventsOpenForLongerThanTheRetentionStay", func(f *outboxFixture[Tx]) {
			if f.db.OneWriter() {
				return
			}
			a := f.start("a", registration())
			open := f.begin()
			f.appendIn(open, eventOf("open", "k"))
			f.append(eventOf("a", "k"))
			a.catchUp()
			f.commit(open)
			f.db.Age(f.T, old)
			pruned, err := f.store.PruneLog(f.Context(), 0, 100, abandonAfter)
			f.must("prune", err)
			a.wantCaughtUp("open")
			f.wantPruned(100, 2-pruned.Events)
		}},
		{"EventsOfAClockThatWasAheadHoldUpNoneBehindThem", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("ahead", 3, 3)...)
			a.catchUp()
			f.db.Age(f.T, -365*24*time.Hour)
			f.append(eventOf("a", "k"))
			a.catchUp()
			f.db.Age(f.T, old)
			first, err := f.store.PruneLog(f.Context(), 0, 3, abandonAfter)
			f.must("prune", err)
			second, err := f.store.PruneLog(f.Context(), first.Next, 3, abandonAfter)
			f.must("prune", err)
			if first.Events != 0 || second.Events != 1 {
				f.Errorf("pruned %+v, then %+v", first, second)
			}
		}},
		{"LongestRetentionCounts", func(f *outboxFixture[Tx]) {
			long := registration()
			long.Relay, long.Retention = "long", 72*time.Hour
			a, b := f.start("a", registration()), f.start("b", long)
			f.append(eventOf("a", "k"))
			a.catchUp()
			b.catchUp()
			f.db.Age(f.T, old)
			f.wantPruned(100, 0)
			f.db.Age(f.T, 48*time.Hour)
			f.wantPruned(100, 1)
		}},
		{"EventsThatAreSetAsideStay", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 6, 6)...)
			asides := asidesOf(a.read(), outbox.Dead, 0)
			asides[4].State, asides[4].After = outbox.Delayed, 1000*time.Hour
			a.save([]outbox.Aside{asides[1], asides[4]}, nil)
			f.db.Age(f.T, old)
			f.wantPruned(100, 4)
			f.wantAside(relayName, "m-1", "m-4")
			if got := f.setAside(relayName, outbox.Filter{})[0].Event; string(got.Payload) != "payload of m-1" {
				f.Errorf("left is %+v", got)
			}
			a.save(nil, asides[1:2])
			f.wantPruned(100, 1)
		}},
		{"PruneIsBoundedAndBeginsWithTheOldest", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 25, 5)...)
			a.catchUp()
			f.db.Age(f.T, old)
			f.wantPruned(10, 10)
			f.replay(0)
			a.renew()
			f.wantEvents(a.read(), idsOfMessages(numbered("m", 25, 5))[10:]...)
			a.save(nil, nil)
			f.wantPruned(10, 10)
			f.wantPruned(10, 5)
			f.wantPruned(10, 0)
		}},
		{"HeldUpLaneKeepsItsOwnEventsOnly", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 60, 20)...)
			held := a.readAllBut(1)
			f.db.Age(f.T, old)
			f.wantPass(2, 60-len(held), 60)
			f.wantPass(2, 0, len(held))
			a.wantCaughtUp(held...)
			f.wantPass(2, len(held), len(held))
		}},
		{"RelayFarBehindInOneLaneKeepsItsEventsOnly", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay, other.Lanes = "other", 7 // its lanes have other events
			a, b := f.start("a", registration()), f.start("b", other)
			f.append(numbered("m", 60, 20)...)
			a.catchUp()
			held := b.readAllBut(5)
			f.append(numbered("unread", 5, 5)...)
			a.catchUp()
			f.db.Age(f.T, old)
			f.append(numbered("young", 25, 5)...)
			a.catchUp()
			// What one lane holds back, what no lane of it has passed, and what is too young.
			pruned, _ := f.pass(2)
			if want := 60 - len(held); pruned != want {
				f.Errorf("pruned are %d events, want %d", pruned, want)
			}
			b.wantCaughtUp(append(append(held, idsOfMessages(numbered("unread", 5, 5))...), idsOfMessages(numbered("young", 25, 5))...)...)
		}},
		{"WhatIsSetAsideIsLookedAtOnceInAPass", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 40, 40)...)
			a.save(asidesOf(a.read()[:30], outbox.Dead, 0), nil)
			f.db.Age(f.T, old)
			f.wantPass(10, 10, 40)
			f.wantPass(10, 0, 30)
		}},
		{"PassEndsWithAStepOfTheYoung", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 15, 5)...)
			f.db.Age(f.T, old)
			f.append(numbered("young", 50, 5)...)
			a.catchUp()
			f.wantPass(10, 15, 30)
			f.wantPass(10, 0, 10)
		}},
		{"PassWithoutALimitIsRefused", func(f *outboxFixture[Tx]) {
			f.start("a", registration())
			for _, limit := range []int{0, -1} {
				if pruned, err := f.store.PruneLog(f.Context(), 0, limit, abandonAfter); err == nil || !strings.Contains(err.Error(), "limit") {
					f.Errorf("with a limit of %d: %+v, %v", limit, pruned, err)
				}
			}
		}},
		{"RelayWithoutInstancesIsPassedOverAfterAWhile", abandonedRelay[Tx]},
		{"RelayThatNeverRanIsPassedOverAfterAWhile", func(f *outboxFixture[Tx]) {
			never := registration()
			never.Relay = "never"
			f.register(never)
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			f.db.Age(f.T, old)
			a.catchUp()
			if pruned := f.wantPruned(100, 0); len(pruned.Abandoned) != 0 {
				f.Errorf("abandoned are %q", pruned.Abandoned)
			}
			f.db.Age(f.T, abandonAfter)
			if pruned := f.wantPruned(100, 1); !slices.Equal(pruned.Abandoned, []string{"never"}) {
				f.Errorf("abandoned are %q", pruned.Abandoned)
			}
		}},
		{"StandstillOfAllRelaysAbandonsNone", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			a, b := f.startFor(time.Minute, "a", registration()), f.startFor(time.Minute, "b", other)
			f.append(eventOf("a", "k"))
			f.db.Age(f.T, abandonAfter+old)
			// Whoever comes first prunes, before its first lease and after it.
			f.register(registration())
			if pruned := f.wantPruned(100, 0); len(pruned.Abandoned) != 0 {
				f.Errorf("abandoned are %q", pruned.Abandoned)
			}
			a.renew()
			a.wantCaughtUp("a")
			f.wantPruned(100, 0)
			f.register(other)
			b.renew()
			b.wantCaughtUp("a")
			f.wantPruned(100, 1)

			// From then on time counts again.
			f.append(eventOf("b", "k"))
			f.must("leave", f.store.Leave(f.Context(), "other", "b"))
			a.leaseFor = longLease
			a.renew()
			a.wantCaughtUp("b")
			f.db.Age(f.T, abandonAfter+old)
			f.register(registration())
			if pruned := f.wantPruned(100, 1); !slices.Equal(pruned.Abandoned, []string{"other"}) {
				f.Errorf("abandoned are %q", pruned.Abandoned)
			}
		}},
		{"OutageOfTheDatabaseAbandonsNoRelayThatGoesOnRunning", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			a, b := f.startFor(time.Minute, "a", registration()), f.startFor(time.Minute, "b", other)
			f.append(eventOf("a", "k"))
			f.db.Age(f.T, abandonAfter+old)
			// Nobody registers anew. Whoever comes first prunes, before its next lease and after it.
			for range 2 {
				if pruned := f.wantPruned(100, 0); len(pruned.Abandoned) != 0 {
					f.Errorf("abandoned are %q", pruned.Abandoned)
				}
				a.renew()
			}
			a.wantCaughtUp("a")
			f.wantPruned(100, 0)
			b.renew()
			b.wantCaughtUp("a")
			f.wantPruned(100, 1)
		}},
		{"RemovedRelayHoldsUpNothing", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay, other.Retention = "other", 1000*time.Hour
			f.register(other)
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.catchUp()
			f.db.Age(f.T, old)
			f.wantPruned(100, 0)
			f.must("remove", f.store.Remove(f.Context(), "other"))
			f.wantPruned(100, 1)
		}},
		{"PrunersAtOnceNeverCountAnEventTwice", logPrunersAtOnce[Tx]},
		{"ReadingGoesOnWhereTheLogWasPruned", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 5, 5)...)
			a.catchUp()
			f.db.Age(f.T, old)
			f.wantPruned(100, 5)
			a.wantCaughtUp()
			f.append(eventOf("new", "k"))
			a.wantCaughtUp("new")
			fresh := registration()
			fresh.Relay = "fresh"
			b := f.start("b", fresh)
			b.wantCaughtUp("new")
			fresh.Relay, fresh.FromNow = "fresh from now", true
			f.start("c", fresh).wantCaughtUp()
		}},
		{"NumbersOfAnEmptyLogGoOn", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			first := a.catchUp()[0].Number
			f.db.Age(f.T, old)
			f.wantPruned(100, 1)
			if got, err := f.store.FirstSince(f.Context(), time.Time{}); err != nil || got <= first {
				f.Errorf("the first event of the empty log would be %d, %v; %d was one", got, err, first)
			}
			f.append(eventOf("b", "k"))
			if got := a.catchUp()[0].Number; got <= first {
				f.Errorf("number %d comes after %d", got, first)
			}
		}},
	}
}

func (f *outboxFixture[Tx]) wantPruned(limit, want int) outbox.Pruned {
	f.Helper()
	pruned, err := f.store.PruneLog(f.Context(), 0, limit, abandonAfter)
	f.must("prune", err)
	if pruned.Events != want {
		f.Fatalf("pruned %+v, want %d events", pruned, want)
	}
	return pruned
}

// readAllBut reads and saves what all other lanes have, and returns what stays in this
// one: more than a pass with a limit of 2 sees in one step.
func (i *instance[Tx]) readAllBut(lane int) (held []string) {
	i.f.Helper()
	for _, event := range i.read() {
		if event.Lane == lane {
			held = append(held, event.ID)
		}
	}
	if len(held) <= 2 {
		i.f.Fatalf("in lane %d are %q only", lane, held)
	}
	others := slices.DeleteFunc(i.lanes(), func(l int) bool { return l == lane })
	i.settleLanes(i.progress(others...), nil, nil)
	return held
}

// pass goes over the log once, and returns how many events were deleted and looked at.
func (f *outboxFixture[Tx]) pass(limit int) (pruned, looked int) {
	f.Helper()
	for after := int64(0); ; {
		step, err := f.store.PruneLog(f.Context(), after, limit, abandonAfter)
		f.must("prune", err)
		pruned += step.Events
		looked += step.Looked
		if step.Events < 0 || step.Events > step.Looked || step.Looked > limit {
			f.Fatalf("with a limit of %d: %+v", limit, step)
		}
		if step.Next == 0 {
			return pruned, looked
		}
		if step.Next <= after || step.Looked == 0 {
			f.Fatalf("behind %d: %+v", after, step)
		}
		after = step.Next
	}
}

func (f *outboxFixture[Tx]) wantPass(limit, pruned, looked int) {
	f.Helper()
	if gotPruned, gotLooked := f.pass(limit); gotPruned != pruned || gotLooked != looked {
		f.Fatalf("pruned are %d events of %d that were looked at, want %d of %d", gotPruned, gotLooked, pruned, looked)
	}
}

func abandonedRelay[Tx any](f *outboxFixture[Tx]) {
	other := registration()
	other.Relay = "other"
	a, b := f.start("a", registration()), f.startFor(time.Minute, "b", other)
	f.append(numbered("m", 5, 5)...)
	a.catchUp()
	b.limit = 2
	events := b.chunk(outbox.Position{}, b.lanes()...)
	b.move(events.End, b.lanes()...)
	b.save(asidesOf(events.Events[:1], outbox.Dead, 0), nil)
	f.db.Age(f.T, abandonAfter-time.Hour)
	first, err := f.store.PruneLog(f.Context(), 0, 100, abandonAfter)
	if err != nil || first.Events > 1 || len(first.Abandoned) != 0 {
		f.Errorf("pruned %+v, %v", first, err)
	}
	f.db.Age(f.T, 2*time.Hour)
	if pruned := f.wantPruned(100, 4-first.Events); !slices.Equal(pruned.Abandoned, []string{"other"}) {
		f.Errorf("abandoned are %q", pruned.Abandoned)
	}
	// What it has set aside waits for a person still.
	f.wantAside("other", "m-0")

	// It comes back and goes on with what is left.
	f.append(eventOf("new", "k"))
	b.renew()
	b.limit = 1000
	b.wantCaughtUp("new")
	if pruned := f.wantPruned(100, 0); len(pruned.Abandoned) != 0 {
		f.Errorf("abandoned are %q", pruned.Abandoned)
	}
}

func logPrunersAtOnce[Tx any](f *outboxFixture[Tx]) {
	const expired = 60
	a := f.start("a", registration())
	f.append(numbered("m", expired, 5)...)
	a.catchUp()
	f.db.Age(f.T, old)
	totals := make([]int, 4)
	var all sync.WaitGroup
	for i := range totals {
		store := f.db.Open(f.T)
		all.Go(func() {
			// Zero may mean that another one is at work: a fixed number of calls.
			for range 10 {
				pruned, err := store.PruneLog(f.Context(), 0, 7, abandonAfter)
				if err != nil || pruned.Events > 7 {
					f.Errorf("pruned %+v, %v", pruned, err)
					return
				}
				totals[i] += pruned.Events
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range totals {
		sum += n
	}
	f.wantPruned(1000, expired-sum)
}
