package storetest

import (
	"reflect"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

func statusRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"NoRelayHasNoStatus", func(f *outboxFixture[Tx]) {
			if got := f.relays(100); len(got) != 0 {
				f.Errorf("got %+v", got)
			}
		}},
		{"SettingsAreThoseRegistered", func(f *outboxFixture[Tx]) {
			first, second := registration(), parkingRegistration()
			first.Relay, first.Topics = "first", []string{"a.*", `b%_\`}
			second.Relay, second.Lanes, second.Retention = "second", 1024, 90*24*time.Hour
			f.register(first)
			f.register(second)
			for _, want := range []outbox.Registration{first, second} {
				got := f.statusOf(want.Relay, 100)
				if len(got.Topics) == 0 {
					got.Topics = nil
				}
				got.FromNow = false
				if !reflect.DeepEqual(got.Registration, want) {
					f.Errorf("got %+v, want %+v", got.Registration, want)
				}
				if len(got.Status) != want.Lanes || len(got.Instances) != 0 {
					f.Errorf("%s has %d lanes, instances %+v", want.Relay, len(got.Status), got.Instances)
				}
			}
		}},
		{"InstancesAndOwnersAreNamed", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			progress := a.progress(1, 2)
			progress[0].Release, progress[1].Release = true, true
			a.settleLanes(progress, nil, nil)
			b := f.startElsewhere("b", registration())
			status := f.statusOf(relayName, 100)
			if age := time.Since(status.SeenAt).Abs(); age > time.Hour {
				f.Errorf("seen %v ago", age)
			}
			instances := slices.SortedFunc(slices.Values(status.Instances), func(x, y outbox.Instance) int { return int(x.Name[0]) - int(y.Name[0]) })
			if len(instances) != 2 || instances[0].Name != "a" || instances[1].Name != "b" {
				f.Fatalf("instances are %+v", instances)
			}
			for _, i := range instances {
				f.wantAbout(i.Lease, longLease)
			}
			for lane, want := range []*instance[Tx]{a, b, b, a} {
				got := status.Status[lane]
				if got.Lane != lane || got.Owner != want.name || got.Epoch != want.lane(lane).Epoch {
					f.Errorf("lane %d is %+v", lane, got)
				}
			}
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			status = f.statusOf(relayName, 100)
			if status.Status[0].Owner != "" || status.Status[1].Owner != "b" {
				f.Errorf("owners are %+v", status.Status)
			}
		}},
		{"EventsThatWereNotPassedAreCounted", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Topics = []string{topic}
			a := f.start("a", r)
			f.append(numbered("m", 40, 40)...)
			f.db.Age(f.T, 2*time.Hour)
			other := eventOf("other", "k")
			other.Topic = otherTopic
			f.append(other)
			events := a.read() // and saves nothing
			f.append(numbered("n", 40, 40)...)
			perLane := make([]int, relayLanes)
			for _, event := range events {
				perLane[event.Lane]++
			}
			for _, lane := range f.statusOf(relayName, 1000).Status {
				if lane.Events != 2*perLane[lane.Lane] || lane.Age < 2*time.Hour || lane.Age > 3*time.Hour {
					f.Errorf("lane %d has %d events of up to %v, want %d", lane.Lane, lane.Events, lane.Age, 2*perLane[lane.Lane])
				}
			}
			for _, lane := range f.statusOf(relayName, 3).Status {
				if lane.Events != 3 || lane.Age < 2*time.Hour {
					f.Errorf("lane %d has %d events of up to %v, counted to 3", lane.Lane, lane.Events, lane.Age)
				}
			}
			a.settleLanes(a.progress(2), nil, nil)
			for _, lane := range f.statusOf(relayName, 1000).Status {
				want := 2 * perLane[lane.Lane]
				if lane.Lane == 2 {
					want = perLane[2]
				}
				if lane.Events != want {
					f.Errorf("with lane 2 ahead, lane %d has %d events, want %d", lane.Lane, lane.Events, want)
				}
			}
			a.save(nil, nil)
			for _, lane := range f.statusOf(relayName, 1000).Status {
				if lane.Events != perLane[lane.Lane] || lane.Age > time.Hour {
					f.Errorf("later, lane %d has %d events of up to %v", lane.Lane, lane.Events, lane.Age)
				}
			}
			a.catchUp()
			for _, lane := range f.statusOf(relayName, 1000).Status {
				if lane.Events != 0 || lane.Age != 0 {
					f.Errorf("at last, lane %d has %d events of up to %v", lane.Lane, lane.Events, lane.Age)
				}
			}
		}},
		{"WhatIsSetAsideIsCountedByState", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 80, 80)...)
			events := a.read()
			states := []outbox.State{outbox.Delayed, outbox.Retrying, outbox.Dead}
			want := make([]map[outbox.State]int, relayLanes)
			held := make([]int64, relayLanes)
			asides := asidesOf(events, outbox.Delayed, time.Hour)
			for i := range asides {
				asides[i].State = states[i%len(states)]
				lane := asides[i].Lane
				if want[lane] == nil {
					want[lane] = map[outbox.State]int{}
				}
				want[lane][asides[i].State]++
				if asides[i].State == outbox.Retrying && held[lane] == 0 {
					held[lane] = asides[i].Number
				}
			}
			a.save(asides, nil)
			for _, lane := range f.statusOf(relayName, 100).Status {
				if !reflect.DeepEqual(lane.Aside, want[lane.Lane]) || lane.HeldBy != held[lane.Lane] {
					f.Errorf("lane %d has %v set aside and is held by %d, want %v and %d", lane.Lane, lane.Aside, lane.HeldBy, want[lane.Lane], held[lane.Lane])
				}
			}
		}},
		{"NothingHoldsALaneThatParksKeys", func(f *outboxFixture[Tx]) {
			a, _ := f.parked("k-1", "k-2")
			a.renew()
			for _, lane := range f.statusOf(relayName, 100).Status {
				if lane.HeldBy != 0 {
					f.Errorf("lane %d is held by %d", lane.Lane, lane.HeldBy)
				}
			}
		}},
		{"HoldersAreAListOldestFirst", func(f *outboxFixture[Tx]) {
			tx := f.begin()
			f.appendIn(tx, eventOf("a", "k"))
			holders, err := f.store.Holders(f.Context())
			f.must("holders", err)
			if !slices.IsSortedFunc(holders, func(x, y outbox.Holder) int { return x.Since.Compare(y.Since) }) {
				f.Errorf("got %+v", holders)
			}
			f.commit(tx)
		}},
	}
}

func (f *outboxFixture[Tx]) relays(countLimit int) []outbox.RelayStatus {
	f.Helper()
	relays, err := f.store.Relays(f.Context(), countLimit)
	f.must("relays", err)
	return relays
}

// statusOf is a relay's, with its lanes in order.
func (f *outboxFixture[Tx]) statusOf(relay string, countLimit int) outbox.RelayStatus {
	f.Helper()
	relays := f.relays(countLimit)
	i := slices.IndexFunc(relays, func(r outbox.RelayStatus) bool { return r.Relay == relay })
	if i < 0 {
		f.Fatalf("no status of %s among %d", relay, len(relays))
	}
	slices.SortFunc(relays[i].Status, func(x, y outbox.LaneStatus) int { return x.Lane - y.Lane })
	return relays[i]
}
