package main

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"

	"github.com/onceward/onceward/inbox"
)

// moment is a point at which a consumer is killed. These two are the hard ones.
type moment string

const (
	// insideTransaction: claim and entry are written and not committed. The
	// database must forget both.
	insideTransaction moment = "inside an open transaction"
	// beforeOffset: the entry is committed and Kafka doesn't know. It will
	// deliver the message again; the inbox must recognise it.
	beforeOffset moment = "after a commit, before its offset"
)

// crash says when a consumer is to die. The zero crash: never.
type crash struct {
	Moment moment `json:"moment"`
	After  int64  `json:"after"` // how many orders
}

// sighting is something the consumer saw, told the moment it happened: what
// stands in a pipe outlives the process that wrote it.
type sighting struct {
	Delivered  int `json:"delivered,omitempty"`  // messages handed to the inbox
	Duplicates int `json:"duplicates,omitempty"` // recognised, not handled again
	Parked     int `json:"parked,omitempty"`     // set aside as dead letters

	// Moment is where the consumer stands still and waits for its death; Order
	// is what it was at.
	Moment moment `json:"moment,omitempty"`
	Order  string `json:"order,omitempty"`
}

func (s *sighting) add(other sighting) {
	s.Delivered += other.Delivered
	s.Duplicates += other.Duplicates
	s.Parked += other.Parked
}

// witness stands between Kafka and the inbox, tells what passes, and makes the
// consumer stand still at the moment of its crash, so that the kill hits
// exactly that moment and not one nearby.
type witness struct {
	inbox.Processor

	crash crash
	tell  func(sighting)
	count atomic.Int64
}

// Process is what Kafka delivers to. It tells before the work, so that a kill
// in the middle of it can't hide the delivery.
func (w *witness) Process(ctx context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	w.tell(sighting{Delivered: len(messages)})
	return w.Processor.Process(ctx, messages)
}

// booked is called by the handler, in the transaction that is still open.
func (w *witness) booked(m inbox.Message) { w.standStill(insideTransaction, m) }

// event is the inbox's hook, called after a message's transaction has ended.
func (w *witness) event(_ context.Context, e inbox.Event) {
	switch e.Kind {
	case inbox.EventProcessed:
		w.standStill(beforeOffset, e.Message)
	case inbox.EventDuplicate:
		w.tell(sighting{Duplicates: e.Count})
	case inbox.EventParked:
		w.tell(sighting{Parked: e.Count})
	default: // of use to whoever operates it
	}
}

func (w *witness) standStill(here moment, m inbox.Message) {
	if here == w.crash.Moment && w.count.Add(1) == w.crash.After {
		w.tell(sighting{Moment: here, Order: m.ID})
		select {} // the kill comes here
	}
}

// tellOn returns a function that writes sightings to w; many goroutines call it.
func tellOn(w io.Writer) func(sighting) {
	var mutex sync.Mutex
	encoder := json.NewEncoder(w)
	return func(s sighting) {
		mutex.Lock()
		defer mutex.Unlock()
		_ = encoder.Encode(s) // fails when the parent is gone; then nobody is left to tell
	}
}
