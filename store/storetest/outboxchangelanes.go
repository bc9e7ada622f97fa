package storetest

import (
	"fmt"

	"github.com/onceward/onceward/outbox"
)

// changedLanes: whatever the lanes had published, nothing is left out afterwards.
func changedLanes[Tx any](f *outboxFixture[Tx]) {
	a := f.start("a", registration())
	f.append(numbered("m", 60, 30)...)
	a.limit = 10
	published := map[string]bool{}
	for _, lane := range []int{1, 3} {
		chunk := a.chunk(outbox.Position{}, lane)
		for _, event := range chunk.Events {
			published[event.ID] = true
		}
		a.move(chunk.End, lane)
	}
	a.save(nil, nil)
	f.must("leave", f.store.Leave(f.Context(), relayName, "a"))
	for _, lanes := range []int{1, 16, 3} {
		f.must("change lanes", f.store.ChangeLanes(f.Context(), relayName, lanes))
		r := registration()
		f.wantIs(f.store.Register(f.Context(), r), outbox.ErrSettings)
		r.Lanes = lanes
		b := f.start("b", r)
		if len(b.lease.Lanes) != lanes || b.lease.Share != lanes {
			f.Fatalf("of %d lanes it got %+v", lanes, b.lease)
		}
		b.limit = 5
		for _, event := range b.chunk(outbox.Position{}, b.lanes()...).Events {
			published[event.ID] = true // And nothing saved: they come again.
		}
		f.append(eventOf(fmt.Sprintf("new-%d", lanes), "k"))
		f.must("leave", f.store.Leave(f.Context(), relayName, "b"))
	}
	r := registration()
	r.Lanes = 3
	for _, event := range f.start("c", r).catchUp() {
		published[event.ID] = true
	}
	if len(published) != 63 {
		f.Fatalf("%d of 63 events were published", len(published))
	}
}
