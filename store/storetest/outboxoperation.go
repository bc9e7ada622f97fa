package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func operationRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"SkipOfWhatIsSetAsideEndsIt", func(f *outboxFixture[Tx]) {
			a, _ := f.parked("k-1", "k-2", "k-3")
			numbers := f.numbers()
			f.must("skip", f.store.Skip(f.Context(), relayName, numbers["k-2"]))
			f.wantStates(map[string]outbox.State{"k-1": outbox.Retrying, "k-3": outbox.Behind})
			f.must("skip", f.store.Skip(f.Context(), relayName, numbers["k-1"]))
			f.wantStates(map[string]outbox.State{"k-3": outbox.Retrying})
			if settled := a.settle(nil, nil); len(settled.Lost) != 1 {
				f.Errorf("of the owner's lanes, lost are %v", settled.Lost)
			}
			a.renew()
			f.wantDue(a, 100, "k-3")
			f.wantIs(f.store.Skip(f.Context(), relayName, numbers["k-1"]), outbox.ErrPassed)
		}},
		{"SkipOfWhatIsToComeIsHeld", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"), eventOf("b", "k"))
			events := a.read()
			f.must("skip", f.store.Skip(f.Context(), relayName, events[1].Number))
			f.must("skip again", f.store.Skip(f.Context(), relayName, events[1].Number))
			f.wantStates(map[string]outbox.State{"b": outbox.Skipped})
			if settled := a.settle(nil, nil); !slices.Equal(settled.Lost, []int{events[1].Lane}) {
				f.Fatalf("lost are %v", settled.Lost)
			}
			a.renew()
			held, err := f.store.Held(f.Context(), relayName, a.lanes())
			if err != nil || len(held) != 1 || held[0].Number != events[1].Number || held[0].Lane != events[1].Lane || held[0].State != outbox.Skipped {
				f.Fatalf("held are %+v, %v", held, err)
			}
			a.read()
			a.save(nil, held)
			f.wantStates(map[string]outbox.State{})
		}},
		{"SkipOfWhatWasPassedIsRefused", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			number := a.catchUp()[0].Number
			f.wantIs(f.store.Skip(f.Context(), relayName, number), outbox.ErrPassed)
			if settled := a.settle(nil, nil); len(settled.Lost) != 0 {
				f.Errorf("lost are %v, though nothing changed", settled.Lost)
			}
			f.wantStates(map[string]outbox.State{})
		}},
		{"SkipOfANumberWithoutAnEventSaysSo", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			unknown := func(number int64, said string) {
				f.Helper()
				err := f.store.Skip(f.Context(), relayName, number)
				if !errors.Is(err, outbox.ErrNoEvent) || errors.Is(err, outbox.ErrPassed) || !strings.Contains(err.Error(), said) {
					f.Errorf("skip of %d: %v, want %q and %q", number, err, outbox.ErrNoEvent, said)
				}
			}
			unknown(1, "not given yet, the last one is 0")
			f.append(eventOf("a", "k"))
			number := a.catchUp()[0].Number
			unknown(number+1, fmt.Sprintf("not given yet, the last one is %d", number))
			unknown(1<<62, "not given yet")
			f.db.Age(f.T, old)
			f.wantPruned(100, 1)
			unknown(number, "pruned")
			f.wantStates(map[string]outbox.State{})
			if settled := a.settle(nil, nil); len(settled.Lost) != 0 {
				f.Errorf("lost are %v, though nothing changed", settled.Lost)
			}
			if !f.db.OneWriter() {
				open := f.begin()
				f.appendIn(open, eventOf("open", "k"))
				unknown(number+1, "still open")
				f.commit(open)
				f.must("skip", f.store.Skip(f.Context(), relayName, number+1))
			}
		}},
		{"SkipOfOtherTopicsSetsNothingAside", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Topics = []string{topic}
			a := f.start("a", r)
			other := eventOf("other", "k")
			other.Topic = otherTopic
			f.append(other, eventOf("a", "k"))
			f.must("skip", f.store.Skip(f.Context(), relayName, a.read()[0].Number-1))
			f.wantStates(map[string]outbox.State{})
			a.wantCaughtUp("a")
		}},
		{"DiscardedEventIsNotReadAgain", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("waits", "k"), eventOf("dead", "k"), eventOf("behind", "k"))
			start := a.lease.Lanes[0].Position // An outage holds up the first: all lanes stand before it.
			asides := asidesOf(a.read()[1:], outbox.Dead, 0)
			asides[1].State = outbox.Behind
			a.move(start, a.lanes()...)
			a.save(asides, nil)
			f.wantCount(1)(f.store.Discard(f.Context(), relayName, selected(outbox.Filter{})))
			f.wantStates(map[string]outbox.State{"dead": outbox.Skipped, "behind": outbox.Retrying})
			a.renew()
			f.wantDue(a, 100, "behind")
			a.read()
			a.save(nil, asides[:1])
			f.wantStates(map[string]outbox.State{"behind": outbox.Retrying})
		}},
		{"RedrivenEventsAreDueWithoutAttempts", redrivenEvents[Tx]},
		{"RedriveWithParkKeyKeepsTheOrderOfTheKey", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2")
			f.append(eventOf("keyless", ""))
			asides[0].State, asides[0].Attempts = outbox.Dead, 10
			a.save(append(asidesOf(a.read(), outbox.Dead, 0), asides[0]), nil)
			f.wantDue(a, 100)
			f.wantCount(2)(f.store.Redrive(f.Context(), relayName, selected(outbox.Filter{})))
			f.wantStates(map[string]outbox.State{"k-1": outbox.Retrying, "k-2": outbox.Behind, "keyless": outbox.Delayed})
			a.renew()
			due := f.wantDueInAnyOrder(a, "k-1", "k-2", "keyless")
			if first, second := slices.Index(due, "k-1"), slices.Index(due, "k-2"); first > second {
				f.Errorf("due are %q", due)
			}
		}},
		{"RedriveTakesDeadOnesOnly", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("dead", "k"), eventOf("delayed", "j"), eventOf("retrying", "i"), eventOf("skipped", "h"))
			asides := asidesOf(a.read(), outbox.Dead, 0)
			for i, state := range []outbox.State{outbox.Delayed, outbox.Retrying, outbox.Skipped} {
				asides[i+1].State, asides[i+1].After = state, time.Hour
			}
			a.save(asides, nil)
			f.wantCount(1)(f.store.Redrive(f.Context(), relayName, selected(outbox.Filter{})))
			f.wantCount(0)(f.store.Discard(f.Context(), relayName, selected(outbox.Filter{})))
			f.wantCount(0)(f.store.Redrive(f.Context(), relayName, selected(outbox.Filter{State: outbox.Retrying})))
			f.wantStates(map[string]outbox.State{"dead": outbox.Delayed, "delayed": outbox.Delayed, "retrying": outbox.Retrying, "skipped": outbox.Skipped})
			a.renew()
			f.wantDue(a, 100, "dead")
		}},
		{"DiscardFreesTheKey", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2")
			asides[0].State = outbox.Dead
			a.save(asides[:1], nil)
			f.wantCount(1)(f.store.Discard(f.Context(), relayName, selected(outbox.Filter{})))
			f.wantStates(map[string]outbox.State{"k-2": outbox.Retrying})
			if settled := a.settle(nil, nil); !slices.Equal(settled.Lost, []int{asides[0].Lane}) {
				f.Errorf("of the owner's lanes, lost are %v", settled.Lost)
			}
			a.renew()
			f.wantDue(a, 100, "k-2")
			if settled := a.save(nil, asides[1:]); len(settled.Freed) != 1 {
				f.Errorf("freed is %q", settled.Freed)
			}
			held, err := f.store.Held(f.Context(), relayName, a.lanes())
			if err != nil || len(held) != 0 {
				f.Errorf("held are %+v, %v", held, err)
			}
		}},
		{"EveryFieldSelectsAloneAndTogether", everyFieldSelectsAsides[Tx]},
		{"DiscardedAreThoseThatTheListShowed", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 6, 6)...)
			asides := asidesOf(a.read(), outbox.Dead, 0)
			a.save(asides, nil)
			f.wantCount(0)(f.store.Discard(f.Context(), relayName, selected(outbox.Filter{Numbers: []int64{}})))
			f.wantCount(2)(f.store.Discard(f.Context(), relayName, outbox.Filter{Limit: 2}))
			f.wantAside(relayName, "m-2", "m-3", "m-4", "m-5")
			f.wantCount(1)(f.store.Discard(f.Context(), relayName, selected(outbox.Filter{MessageID: "m-4"})))
			f.wantCount(1)(f.store.Redrive(f.Context(), relayName, selected(outbox.Filter{After: asides[4].Number})))
			f.wantStates(map[string]outbox.State{"m-2": outbox.Dead, "m-3": outbox.Dead, "m-5": outbox.Delayed})
		}},
		{"BriefListLeavesOutPayloadAndHeaders", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			m := eventOf("a", "k")
			m.Headers = []outbox.Header{{Name: "h", Value: []byte("v")}}
			f.append(m)
			a.save(asidesOf(a.read(), outbox.Dead, 0), nil)
			whole, brief := f.setAside(relayName, outbox.Filter{})[0], f.setAside(relayName, outbox.Filter{Brief: true})[0]
			if whole.Event.Payload == nil || whole.Event.Headers == nil {
				f.Errorf("the whole event is %+v", whole.Event)
			}
			if brief.Event.Payload != nil || brief.Event.Headers != nil {
				f.Errorf("the brief event is %+v", brief.Event)
			}
			if brief.Event.ID != "a" || string(brief.Event.Key) != "k" || brief.Aside != whole.Aside || !brief.SetAsideAt.Equal(whole.SetAsideAt) {
				f.Errorf("the rest of it is %+v", brief)
			}
		}},
		{"ChangedLanesStartWhereTheLastStood", changedLanes[Tx]},
		{"ChangedLanesKeepWhatIsSetAside", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(numbered("m", 60, 20)...)
			asides := asidesOf(a.read(), outbox.Behind, 0)
			for i := range 20 {
				asides[i].State, asides[i].After = outbox.Retrying, 0
			}
			a.save(asides, nil)
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			f.must("change lanes", f.store.ChangeLanes(f.Context(), relayName, 7))
			r := parkingRegistration()
			r.Lanes = 7
			b := f.start("b", r)
			b.wantCaughtUp()
			if got := len(f.wantDueInAnyOrder(b, idsOfMessages(numbered("m", 60, 20))...)); got != 60 {
				f.Errorf("%d are due", got)
			}
			lanes := map[string]int{}
			for _, aside := range f.setAside(relayName, outbox.Filter{}) {
				lanes[aside.Event.ID] = aside.Aside.Lane
			}
			f.replay(0)
			for _, event := range b.catchUp() {
				if lanes[event.ID] != event.Lane {
					f.Errorf("%s was set aside in lane %d and is read in %d", event.ID, lanes[event.ID], event.Lane)
				}
			}
		}},
		{"LanesOfARunningRelayAreNotChanged", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.wantIs(f.store.ChangeLanes(f.Context(), relayName, 8), outbox.ErrRunning)
			f.wantIs(f.store.Remove(f.Context(), relayName), outbox.ErrRunning)
			a.renew()
			if len(a.lease.Lanes) != relayLanes {
				f.Errorf("it has %+v", a.lease)
			}
			f.db.Age(f.T, longLease+time.Minute)
			f.must("change lanes", f.store.ChangeLanes(f.Context(), relayName, 8))
			if settled := a.settle(nil, nil); len(settled.Lost) != relayLanes {
				f.Errorf("of the old owner's lanes, lost are %v", settled.Lost)
			}
			r := registration()
			r.Lanes = 8
			b := f.start("b", r)
			for _, old := range a.lease.Lanes {
				if got := b.lane(old.Lane).Epoch; got <= old.Epoch {
					f.Errorf("lane %d has epoch %d, had %d", old.Lane, got, old.Epoch)
				}
			}
		}},
		{"RemovedRelayIsGoneWithAllItHas", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			f.append(eventOf("a", "k"))
			a, b := f.start("a", registration()), f.start("b", other)
			a.save(asidesOf(a.read(), outbox.Dead, 0), nil)
			b.save(asidesOf(b.read(), outbox.Dead, 0), nil)
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			f.must("remove", f.store.Remove(f.Context(), relayName))
			_, err := f.store.Lease(f.Context(), relayName, "a", longLease)
			f.wantIs(err, outbox.ErrNoRelay)
			f.wantAside("other", "a")
			anew := parkingRegistration()
			anew.Lanes = 2
			c := f.start("c", anew)
			f.wantAside(relayName)
			c.wantCaughtUp("a")
		}},
		{"OperationsOnAnUnknownRelayAreRefused", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"))
			number := f.start("a", registration()).read()[0].Number
			for name, operation := range map[string]func() error{
				"Replay":      func() error { return f.store.Replay(f.Context(), "unknown", 1) },
				"Skip":        func() error { return f.store.Skip(f.Context(), "unknown", number) },
				"ChangeLanes": func() error { return f.store.ChangeLanes(f.Context(), "unknown", 2) },
				"Remove":      func() error { return f.store.Remove(f.Context(), "unknown") },
				"SetAside": func() error {
					_, err := f.store.SetAside(f.Context(), "unknown", selected(outbox.Filter{}))
					return err
				},
				"Redrive": func() error {
					_, err := f.store.Redrive(f.Context(), "unknown", selected(outbox.Filter{}))
					return err
				},
				"Discard": func() error {
					_, err := f.store.Discard(f.Context(), "unknown", selected(outbox.Filter{}))
					return err
				},
			} {
				f.Run(name, func(t *testing.T) {
					(&outboxFixture[Tx]{T: t, db: f.db, store: f.store}).wantIs(operation(), outbox.ErrNoRelay)
				})
			}
		}},
	}
}

// numbers are those of what is set aside, by ID.
func (f *outboxFixture[Tx]) numbers() map[string]int64 {
	f.Helper()
	numbers := map[string]int64{}
	for _, aside := range f.setAside(relayName, outbox.Filter{}) {
		numbers[aside.Event.ID] = aside.Event.Number
	}
	return numbers
}

func (f *outboxFixture[Tx]) wantCount(want int) func(got int, err error) {
	return func(got int, err error) {
		f.Helper()
		if err != nil || got != want {
			f.Fatalf("%d, %v, want %d", got, err, want)
		}
	}
}

func (f *outboxFixture[Tx]) wantDueInAnyOrder(i *instance[Tx], want ...string) []string {
	f.Helper()
	due, err := i.store.Due(f.Context(), i.relay.Relay, i.lanes(), 1000, 1<<22)
	f.must("due", err)
	got := idsOfEvents(due.Events)
	if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		f.Fatalf("due are %q, want %q", got, want)
	}
	return got
}

func redrivenEvents[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", registration())
	f.append(eventOf("a", "k"), eventOf("b", "k"), eventOf("keyless", ""))
	asides := asidesOf(a.read(), outbox.Dead, 0)
	for i := range asides {
		asides[i].Attempts, asides[i].Error = 10, "refused"
	}
	a.save(asides, nil)
	f.wantCount(2)(f.store.Redrive(f.Context(), relayName, selected(outbox.Filter{Numbers: []int64{asides[0].Number, asides[2].Number}})))
	f.wantStates(map[string]outbox.State{"a": outbox.Delayed, "b": outbox.Dead, "keyless": outbox.Delayed})
	settled := a.settle(nil, nil)
	for _, lane := range []int{asides[0].Lane, asides[2].Lane} {
		if !slices.Contains(settled.Lost, lane) {
			f.Errorf("the owner of lane %d does not learn of it: lost are %v", lane, settled.Lost)
		}
	}
	a.renew()
	f.wantAbout(a.lease.Due, 0)
	f.wantDueInAnyOrder(a, "a", "keyless")
	due, err := f.store.Due(f.Context(), relayName, a.lanes(), 100, 1<<20)
	f.must("due", err)
	for _, event := range due.Events {
		if event.Attempts != 0 {
			f.Errorf("%s has %d attempts", event.ID, event.Attempts)
		}
	}
}

func everyFieldSelectsAsides[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", registration())
	messages := numbered("m", 6, 6)
	messages[2].Topic, messages[3].Topic = otherTopic, otherTopic
	messages[4].Topic = `odd % _ \ '`
	messages[5].ID = "m-0"
	f.append(messages...)
	asides := asidesOf(a.read(), outbox.Dead, 0)
	asides[1].State, asides[3].State = outbox.Delayed, outbox.Retrying
	asides[1].After, asides[3].After = time.Hour, time.Hour
	a.save(asides, nil)
	var numbers []int64
	for _, aside := range asides {
		numbers = append(numbers, aside.Number)
	}
	for _, c := range []struct {
		name   string
		filter outbox.Filter
		want   []int
	}{
		{"nothing set", outbox.Filter{}, []int{0, 1, 2, 3, 4, 5}},
		{"numbers in any order, repeated and unknown", outbox.Filter{Numbers: []int64{numbers[4], numbers[1], numbers[4], 1 << 60, -1}}, []int{1, 4}},
		{"empty list of numbers", outbox.Filter{Numbers: []int64{}}, nil},
		{"after", outbox.Filter{After: numbers[3]}, []int{4, 5}},
		{"state", outbox.Filter{State: outbox.Dead}, []int{0, 2, 4, 5}},
		{"state of none", outbox.Filter{State: outbox.Behind}, nil},
		{"topic", outbox.Filter{Topic: otherTopic}, []int{2, 3}},
		{"topic literally", outbox.Filter{Topic: messages[4].Topic}, []int{4}},
		{"topic is no pattern", outbox.Filter{Topic: "*"}, nil},
		{"message ID", outbox.Filter{MessageID: "m-0"}, []int{0, 5}},
		{"limit", outbox.Filter{Limit: 4}, []int{0, 1, 2, 3}},
		{"state, after and limit", outbox.Filter{State: outbox.Dead, After: numbers[0], Limit: 2}, []int{2, 4}},
		{"topic and state", outbox.Filter{Topic: otherTopic, State: outbox.Retrying}, []int{3}},
		{"message ID and topic", outbox.Filter{MessageID: "m-0", Topic: otherTopic}, nil},
		{"everything, briefly", outbox.Filter{
			Numbers: numbers, After: numbers[1], State: outbox.Retrying, Topic: otherTopic, MessageID: "m-3", Limit: 5, Brief: true,
		}, []int{3}},
	} {
		var got []int
		for _, aside := range f.setAside(relayName, c.filter) {
			got = append(got, slices.Index(numbers, aside.Event.Number))
		}
		if !slices.Equal(got, c.want) {
			f.Errorf("%s selects %v, want %v", c.name, got, c.want)
		}
	}
}
