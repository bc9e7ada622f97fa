package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/outbox"
)

func leaseRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"FirstInstanceOwnsEveryLane", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			if got := a.lanes(); !slices.Equal(got, []int{0, 1, 2, 3}) || a.lease.Share != relayLanes || a.lease.Due >= 0 {
				f.Fatalf("got %+v", a.lease)
			}
		}},
		{"ProlongedLeaseKeepsItsLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			before := a.lease
			for range 3 {
				f.db.Age(f.T, longLease-time.Minute)
				a.renew()
			}
			if !sameLanes(before, a.lease) {
				f.Fatalf("got %+v, had %+v", a.lease, before)
			}
			if b := f.startElsewhere("b", registration()); len(b.lease.Lanes) != 0 || b.lease.Share != relayLanes/2 {
				f.Fatalf("another instance got %+v", b.lease)
			}
		}},
		{"LanesOfAnEndedLeaseAreTakenWithALaterEpoch", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.read()
			a.save(nil, nil)
			f.db.Age(f.T, longLease+time.Minute)
			b := f.startElsewhere("b", registration())
			if !slices.Equal(b.lanes(), a.lanes()) || b.lease.Share != relayLanes {
				f.Fatalf("got %+v", b.lease)
			}
			for _, lane := range b.lease.Lanes {
				old := a.lane(lane.Lane)
				if lane.Epoch <= old.Epoch || lane.Position != old.Position {
					f.Errorf("lane %+v was %+v", lane, *old)
				}
			}
			// Who wakes has nothing but a share.
			a.renew()
			if len(a.lease.Lanes) != 0 || a.lease.Share != relayLanes/2 {
				f.Errorf("the old owner has %+v", a.lease)
			}
		}},
		{"LeavingFreesTheLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
			b := f.startElsewhere("b", registration())
			if b.lease.Share != relayLanes || len(b.lease.Lanes) != relayLanes {
				f.Fatalf("got %+v", b.lease)
			}
			for _, lane := range b.lease.Lanes {
				if lane.Epoch <= a.lane(lane.Lane).Epoch {
					f.Errorf("lane %d has epoch %d, had %d", lane.Lane, lane.Epoch, a.lane(lane.Lane).Epoch)
				}
			}
			f.must("leave again", f.store.Leave(f.Context(), relayName, "a"))
			f.must("leave what never was", f.store.Leave(f.Context(), relayName, "stranger"))
			b.renew()
			if len(b.lease.Lanes) != relayLanes {
				f.Fatalf("afterwards it has %+v", b.lease)
			}
		}},
		{"ReleasedLaneIsFreeAndItsPositionSaved", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(eventOf("a", "k"))
			a.read()
			progress := a.progress(2)
			progress[0].Release = true
			if settled := a.settleLanes(progress, nil, nil); len(settled.Lost) != 0 {
				f.Fatalf("lost %v", settled.Lost)
			}
			b := f.startElsewhere("b", registration())
			if got := b.lanes(); !slices.Equal(got, []int{2}) {
				f.Fatalf("the other got lanes %v", got)
			}
			if b.lane(2).Epoch <= a.lane(2).Epoch || b.lane(2).Position != a.lane(2).Position {
				f.Errorf("it got %+v, released was %+v", *b.lane(2), *a.lane(2))
			}
			a.renew()
			if got := a.lanes(); !slices.Equal(got, []int{0, 1, 3}) {
				f.Errorf("left are lanes %v", got)
			}
		}},
		{"InstancesShareEvenly", instancesShareEvenly[Tx]},
		{"MoreInstancesThanLanesHaveNoneToSpare", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Lanes = 2
			shares := map[string]int{"a": 1, "b": 1, "c": 0}
			for name := range shares {
				f.start(name, r)
			}
			for name, share := range shares {
				if i := f.start(name, r); i.lease.Share != share {
					f.Errorf("%s has a share of %d, want %d", name, i.lease.Share, share)
				}
			}
		}},
		{"LeaseTooShortToLastIsRefused", func(f *outboxFixture[Tx]) {
			f.register(registration())
			for _, lease := range []time.Duration{-time.Hour, 0, 1, time.Microsecond - 1, time.Microsecond, time.Millisecond - 1} {
				if got, err := f.store.Lease(f.Context(), relayName, "a", lease); err == nil || !strings.Contains(err.Error(), "lease is "+lease.String()) {
					f.Errorf("a lease of %v is %+v, %v", lease, got, err)
				}
			}
			if b := f.start("b", registration()); len(b.lease.Lanes) != relayLanes {
				f.Errorf("another instance got %+v", b.lease)
			}
		}},
		{"ShortestLeaseCountsItsOwner", func(f *outboxFixture[Tx]) {
			for range 20 { // It may be over before the call is.
				if a := f.startFor(time.Millisecond, "a", registration()); a.lease.Share != relayLanes {
					f.Fatalf("got %+v", a.lease)
				}
			}
		}},
		{"UnknownRelayIsNone", func(f *outboxFixture[Tx]) {
			_, err := f.store.Lease(f.Context(), "unknown", "a", longLease)
			f.wantIs(err, outbox.ErrNoRelay)
		}},
		{"RelaysLeaseApart", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay = "other"
			a, b := f.start("a", registration()), f.start("a", other)
			f.start("b", other)
			b.renew()
			a.renew()
			if a.lease.Share != relayLanes || b.lease.Share != relayLanes/2 {
				f.Errorf("shares are %d and %d", a.lease.Share, b.lease.Share)
			}
		}},
		{"DueIsThatOfItsOwnLanes", func(f *outboxFixture[Tx]) {
			a := f.start("a", registration())
			f.append(numbered("m", 40, 40)...)
			events := a.read()
			slow, soonDue := firstOf(events, 0), firstOf(events, 1)
			a.save([]outbox.Aside{asideOf(slow, outbox.Delayed, time.Hour), asideOf(soonDue, outbox.Retrying, time.Minute)}, nil)
			a.renew()
			f.wantAbout(a.lease.Due, time.Minute)
			progress := a.progress(1)
			progress[0].Release = true
			a.settleLanes(progress, nil, nil)
			b := f.startElsewhere("b", registration())
			f.wantAbout(b.lease.Due, time.Minute)
			a.renew()
			f.wantAbout(a.lease.Due, time.Hour)
			f.db.Age(f.T, 2*time.Minute)
			b.renew()
			f.wantAbout(b.lease.Due, 0)
		}},
		{"LaneNeverHasTwoOwnersOfOneEpoch", neverTwoOwners[Tx]},
	}
}

// firstOf is the first event in the lane.
func firstOf(events []outbox.Event, lane int) outbox.Event {
	return events[slices.IndexFunc(events, func(e outbox.Event) bool { return e.Lane == lane })]
}

// wantAbout allows for a busy machine.
func (f *outboxFixture[Tx]) wantAbout(got, want time.Duration) {
	f.Helper()
	if got < 0 || got > want || got < want-want/2 {
		f.Fatalf("due in %v, want about %v", got, want)
	}
}

func sameLanes(a, b outbox.Lease) bool {
	byLane := func(x, y outbox.OwnedLane) int { return x.Lane - y.Lane }
	x, y := slices.SortedFunc(slices.Values(a.Lanes), byLane), slices.SortedFunc(slices.Values(b.Lanes), byLane)
	return slices.Equal(x, y)
}

// releaseSurplus gives back what it owns beyond its share.
func (i *instance[Tx]) releaseSurplus() {
	i.f.Helper()
	surplus := i.progress()
	if len(surplus) <= i.lease.Share {
		return
	}
	surplus = surplus[i.lease.Share:]
	for n := range surplus {
		surplus[n].Release = true
	}
	i.settleLanes(surplus, nil, nil)
}

func instancesShareEvenly[Tx any](f *outboxFixture[Tx]) {
	r := registration()
	r.Lanes = 16
	instances := []*instance[Tx]{f.start("a", r)}
	for _, name := range []string{"b", "c"} {
		instances = append(instances, f.startElsewhere(name, r))
	}
	settle := func(live []*instance[Tx], want ...int) {
		f.Helper()
		for range 2 { // Once to release, once to take.
			for _, i := range live {
				i.renew()
				i.releaseSurplus()
			}
		}
		var owned []int
		for n, i := range live {
			i.renew()
			if len(i.lease.Lanes) != want[n] || i.lease.Share != want[n] {
				f.Fatalf("%s owns lanes %v of a share of %d, want %d", i.name, i.lanes(), i.lease.Share, want[n])
			}
			owned = append(owned, i.lanes()...)
		}
		slices.Sort(owned)
		if len(slices.Compact(owned)) != r.Lanes {
			f.Fatalf("owned are %v", owned)
		}
	}
	settle(instances, 6, 5, 5)

	// One dies: the others get its lanes when its lease is over.
	f.db.Age(f.T, longLease-time.Minute)
	instances[0].renew()
	instances[2].renew()
	f.db.Age(f.T, 2*time.Minute)
	settle([]*instance[Tx]{instances[0], instances[2]}, 8, 8)

	// It comes back, and another one stops cleanly.
	settle(instances, 6, 5, 5)
	f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
	settle(instances[1:], 8, 8)
}

// neverTwoOwners lets instances come and go on several handles, and looks that
// each epoch of a lane was given to one of them.
func neverTwoOwners[Tx any](f *outboxFixture[Tx]) {
	r := registration()
	r.Lanes = 8
	f.register(r)
	type term struct {
		lane  int
		epoch int64
	}
	var mu sync.Mutex
	owners := map[term]string{}
	var all sync.WaitGroup
	for n := range 4 {
		store := f.db.Open(f.T)
		all.Go(func() {
			for round := range 25 {
				name := fmt.Sprintf("instance-%d-%d", n, round/5)
				lease, err := store.Lease(f.Context(), r.Relay, name, longLease)
				if err != nil {
					f.Errorf("lease: %v", err)
					return
				}
				mu.Lock()
				for _, lane := range lease.Lanes {
					if owner, ok := owners[term{lane.Lane, lane.Epoch}]; ok && owner != name {
						f.Errorf("lane %d with epoch %d is owned by %s and %s", lane.Lane, lane.Epoch, owner, name)
					}
					owners[term{lane.Lane, lane.Epoch}] = name
				}
				mu.Unlock()
				if round%5 == 4 {
					err = store.Leave(f.Context(), r.Relay, name)
				} else if len(lease.Lanes) > lease.Share {
					_, err = store.Settle(f.Context(), outbox.Settlement{
						Relay: r.Relay, Instance: name, Lanes: []outbox.LaneProgress{{OwnedLane: lease.Lanes[0], Release: true}},
					})
				}
				if err != nil {
					f.Errorf("leave or release: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if len(owners) < r.Lanes {
		f.Errorf("only %d lanes were ever owned", len(owners))
	}
}
