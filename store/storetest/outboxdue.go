package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

func dueRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"OldestDueComesFirstWithItsAttempts", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 5, 5)...)
			asides := asidesOf(a.read(), outbox.Delayed, 0)
			for i, after := range []time.Duration{4 * time.Minute, 2 * time.Minute, 3 * time.Minute, time.Minute, time.Hour} {
				asides[i].After = after
				asides[i].Attempts = i
			}
			asides[2].State = outbox.Retrying
			a.save(asides, nil)
			due := f.wantDue(a, 100)
			f.wantAbout(due.Next, time.Minute)
			f.db.Age(f.T, 5*time.Minute)
			due = f.wantDue(a, 100, "m-3", "m-1", "m-2", "m-0")
			f.wantAbout(due.Next, 55*time.Minute)
			for i, aside := range due.Asides {
				want := asides[slices.Index([]string{"m-0", "m-1", "m-2", "m-3"}, due.Events[i].ID)]
				if aside.State != want.State || aside.Lane != want.Lane || aside.KeyHash != want.KeyHash || aside.Attempts != want.Attempts || due.Events[i].Attempts != want.Attempts {
					f.Errorf("got %+v, want %+v", aside, want)
				}
			}
			// Looking changes nothing; what is done is not due any more.
			f.wantDue(a, 2, "m-3", "m-1")
			a.save(nil, due.Asides)
			due = f.wantDue(a, 100)
			f.wantAbout(due.Next, 55*time.Minute)
		}},
		{"NothingSetAsideIsNeverDue", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			if due := f.wantDue(a, 100); due.Next >= 0 {
				f.Errorf("the next is due in %v", due.Next)
			}
		}},
		{"DeadBehindAndSkippedAreNotDue", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("dead", "k"), eventOf("behind", "k"), eventOf("skipped", "j"))
			asides := asidesOf(a.read(), outbox.Dead, 0)
			asides[1].State, asides[2].State = outbox.Behind, outbox.Skipped
			a.save(asides, nil)
			f.db.Age(f.T, time.Hour)
			if due := f.wantDue(a, 100); due.Next >= 0 {
				f.Errorf("the next is due in %v", due.Next)
			}
		}},
		{"ThoseBehindComeAfterTheirFirstInOrder", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("k-1", "k"), eventOf("j-1", "j"), eventOf("k-2", "k"), eventOf("j-2", "j"), eventOf("x-1", "x"), eventOf("x-2", "x"), eventOf("k-3", "k"))
			asides := asidesOf(a.read(), outbox.Behind, 0)
			for i, after := range map[int]time.Duration{0: 2 * time.Minute, 1: time.Minute, 4: time.Hour} {
				asides[i].State, asides[i].After = outbox.Retrying, after
			}
			a.save(asides, nil)
			f.wantDue(a, 100)
			f.db.Age(f.T, 3*time.Minute)
			f.wantDue(a, 100, "j-1", "j-2", "k-1", "k-2", "k-3")
			f.wantDue(a, 4, "j-1", "j-2", "k-1", "k-2")
			f.wantDue(a, 1, "j-1")
		}},
		{"DelayedEventBringsNoneOfItsKeyAlong", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(eventOf("k-1", "k"), eventOf("k-2", "k"), eventOf("delayed", "k"))
			asides := asidesOf(a.read(), outbox.Behind, 0)
			asides[0].State, asides[0].After = outbox.Retrying, time.Hour
			asides[2].State = outbox.Delayed
			a.save(asides, nil)
			f.wantDue(a, 100, "delayed")
		}},
		{"LimitAndBytesBoundWhatIsDue", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			messages := numbered("m", 6, 6)
			for i := range messages {
				messages[i].Payload = bytes.Repeat([]byte("p"), 10_000)
			}
			f.append(messages...)
			asides := asidesOf(a.read(), outbox.Delayed, 0)
			for i := range asides {
				asides[i].After = time.Duration(i) * time.Minute
			}
			a.save(asides, nil)
			f.db.Age(f.T, 10*time.Minute)
			if due := f.wantDue(a, 4, "m-0", "m-1", "m-2", "m-3"); due.Next != 0 {
				f.Errorf("more is due in %v", due.Next)
			}
			for maxBytes, most := range map[int]int{35_000: 3, 1: 1} {
				due, err := f.store.Due(f.Context(), relayName, a.lanes(), 100, maxBytes)
				f.must("due", err)
				if len(due.Events) < 1 || len(due.Events) > most || len(due.Asides) != len(due.Events) || due.Next != 0 {
					f.Errorf("%d events with a bound of %d bytes, the next in %v", len(due.Events), maxBytes, due.Next)
				}
			}
		}},
		{"DueIsThatOfTheLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 40, 40)...)
			events := a.read()
			a.save(asidesOf(events, outbox.Delayed, 0), nil)
			seen := 0
			for lane := range relayLanes {
				due, err := f.store.Due(f.Context(), relayName, []int{lane}, 100, 1<<20)
				f.must("due", err)
				for _, event := range due.Events {
					if event.Lane != lane {
						f.Errorf("lane %d comes with lane %d", event.Lane, lane)
					}
				}
				seen += len(due.Events)
			}
			if seen != len(events) {
				f.Errorf("%d of %d came", seen, len(events))
			}
		}},
	}
}

// wantDue fails unless these are due, in this order.
func (f *outboxFixture[Tx]) wantDue(i *instance[Tx], limit int, want ...string) outbox.Due {
	f.Helper()
	due, err := i.store.Due(f.Context(), i.relay.Relay, i.lanes(), limit, 1<<22)
	f.must("due", err)
	f.wantEvents(due.Events, want...)
	if len(due.Asides) != len(due.Events) {
		f.Fatalf("%d events come with %d asides", len(due.Events), len(due.Asides))
	}
	for n, aside := range due.Asides {
		if aside.Number != due.Events[n].Number {
			f.Fatalf("aside %d is that of another event", n)
		}
	}
	return due
}

func outboxKeyRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"FirstBehindTakesThePlaceOfWhatIsDone", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2", "k-3")
			settled := a.save(nil, asides[:1])
			if len(settled.Freed) != 0 {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{"k-2": outbox.Retrying, "k-3": outbox.Behind})
			f.wantDue(a, 100, "k-2", "k-3")
			a.save(nil, asides[1:2])
			f.wantDue(a, 100, "k-3")
			settled = a.save(nil, asides[2:])
			if !slices.Equal(settled.Freed, []string{outbox.KeyHash(topic, []byte("k"))}) {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{})
		}},
		{"SeveralOfAKeyMayBeDoneAtOnce", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2", "k-3", "k-4")
			a.save(nil, asides[:2])
			f.wantStates(map[string]outbox.State{"k-3": outbox.Retrying, "k-4": outbox.Behind})
			settled := a.save(nil, asides[2:])
			if !slices.Equal(settled.Freed, []string{outbox.KeyHash(topic, []byte("k"))}) {
				f.Errorf("freed is %q", settled.Freed)
			}
		}},
		{"WhatFailsBehindWhatIsDoneIsTheNextFirst", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2", "k-3")
			failed := asides[1]
			failed.State, failed.After, failed.Attempts = outbox.Retrying, time.Hour, 1
			a.save([]outbox.Aside{failed}, asides[:1])
			f.wantStates(map[string]outbox.State{"k-2": outbox.Retrying, "k-3": outbox.Behind})
			f.wantDue(a, 100)
		}},
		{"WhatIsSetAsideTogetherWithWhatIsDoneKeepsTheKey", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1")
			f.append(eventOf("k-2", "k"))
			settled := a.save(asidesOf(a.read(), outbox.Behind, 0), asides)
			if len(settled.Freed) != 0 {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{"k-2": outbox.Retrying})
			f.wantDue(a, 100, "k-2")
		}},
		{"KeyOfADeadEventIsNotFreed", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1", "k-2", "k-3")
			asides[0].State = outbox.Dead
			a.save(asides[:1], nil)
			f.wantDue(a, 100)
			f.wantStates(map[string]outbox.State{"k-1": outbox.Dead, "k-2": outbox.Behind, "k-3": outbox.Behind})
			if settled := a.save(nil, asides[1:2]); len(settled.Freed) != 0 {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{"k-1": outbox.Dead, "k-3": outbox.Behind})
		}},
		{"OtherKeysAreLeftAlone", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			other := eventOf("other topic", "k")
			other.Topic = otherTopic
			f.append(eventOf("k-1", "k"), other, eventOf("keyless", ""), eventOf("also keyless", ""))
			asides := asidesOf(a.read(), outbox.Retrying, 0)
			a.save(asides, nil)
			settled := a.save(nil, asides[2:])
			if len(settled.Freed) != 0 {
				f.Errorf("freed is %q, of events without a key", settled.Freed)
			}
			settled = a.save(nil, asides[:1])
			if !slices.Equal(settled.Freed, []string{outbox.KeyHash(topic, []byte("k"))}) {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{"other topic": outbox.Retrying})
		}},
		{"ManyKeysSettleAtOnce", func(f *outboxFixture[Tx]) {
			a := f.start("a", parkingRegistration())
			f.append(numbered("m", 600, 200)...)
			events := a.read()
			asides := asidesOf(events, outbox.Behind, 0)
			for i := range 200 {
				asides[i].State = outbox.Retrying
			}
			a.save(asides, nil)
			if settled := a.save(nil, asides[:200]); len(settled.Freed) != 0 {
				f.Errorf("%d keys are freed", len(settled.Freed))
			}
			// Each second event is the first of its key now.
			var retrying int
			for _, state := range f.states(relayName) {
				if state == outbox.Retrying {
					retrying++
				}
			}
			if retrying != 200 {
				f.Errorf("%d are retrying", retrying)
			}
			settled := a.save(nil, asides[200:])
			freed := slices.Sorted(slices.Values(settled.Freed))
			if len(slices.Compact(freed)) != 200 || len(settled.Freed) != 200 {
				f.Errorf("%d keys are freed", len(settled.Freed))
			}
		}},
		{"DelayedEventKeepsNoKey", func(f *outboxFixture[Tx]) {
			a, asides := f.parked("k-1")
			f.append(eventOf("delayed", "k"))
			a.save(asidesOf(a.read(), outbox.Delayed, time.Hour), nil)
			if settled := a.save(nil, asides); !slices.Equal(settled.Freed, []string{outbox.KeyHash(topic, []byte("k"))}) {
				f.Errorf("freed is %q", settled.Freed)
			}
			f.wantStates(map[string]outbox.State{"delayed": outbox.Delayed})
		}},
	}
}

// parked starts an instance that has these events of key k set aside: the
// first is to be tried again and due, the others are behind it.
func (f *outboxFixture[Tx]) parked(ids ...string) (*instance[Tx], []outbox.Aside) {
	f.Helper()
	a := f.start("a", parkingRegistration())
	messages := make([]outbox.Message, len(ids))
	for i, id := range ids {
		messages[i] = eventOf(id, "k")
	}
	f.append(messages...)
	asides := asidesOf(a.read(), outbox.Behind, 0)
	asides[0].State, asides[0].After, asides[0].Attempts = outbox.Retrying, 0, 1
	a.save(asides, nil)
	return a, asides
}

func (f *outboxFixture[Tx]) wantStates(want map[string]outbox.State) {
	f.Helper()
	if got := f.states(relayName); fmt.Sprint(got) != fmt.Sprint(want) {
		f.Fatalf("set aside are %v, want %v", got, want)
	}
}
