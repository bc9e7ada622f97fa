package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// leaseHolder prolongs the lease of an instance on a goroutine of its own, so that
// a slow statement of the instance does not cost it its lanes. It also knows until when
// publishing is allowed: the time from before the call that prolonged the lease, so
// that the store's clock ends it later than ours.
type leaseHolder struct {
	store           RelayStore
	relay, instance string
	lease           time.Duration
	timeout         time.Duration

	kick    chan struct{}
	results chan leaseResult // the newest one

	mu       sync.Mutex
	parent   context.Context
	deadline time.Time
	expiry   *time.Timer
	calls    context.Context // of the publisher
	cancel   context.CancelFunc
	ended    bool
}

type leaseResult struct {
	Lease

	began time.Time
	err   error
}

func newLeaseHolder(publishing context.Context, in *instance) *leaseHolder {
	h := &leaseHolder{
		store: in.store, relay: in.Name, instance: in.name, lease: in.Lease * 3 / 4, timeout: min(in.Lease/2, storeTimeout),
		kick: make(chan struct{}, 1), results: make(chan leaseResult, 1), parent: publishing,
	}
	h.calls, h.cancel = context.WithCancel(publishing)
	h.cancel() // Nothing is leased yet.
	h.expiry = time.AfterFunc(time.Hour, h.expire)
	h.expiry.Stop()
	return h
}

// run prolongs the lease until ctx ends.
func (h *leaseHolder) run(ctx context.Context) {
	shortest := h.lease / 64
	retry := shortest
	for {
		began := time.Now()
		// It ends by itself: one that is given up may go on in the store, and would take the
		// lanes again behind Leave, for nobody, until that lease is over.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
		lease, err := h.store.Lease(call, h.relay, h.instance, h.lease)
		cancel()
		if ctx.Err() != nil {
			return
		}
		pause := h.lease / 3
		if err == nil {
			h.extend(began.Add(h.lease))
			retry = shortest
		} else {
			pause = min(pause, retry/2+rand.N(retry))
			retry = min(2*retry, h.lease)
		}
		select {
		case <-h.results: // Nobody has looked at the last one.
		default:
		}
		h.results <- leaseResult{lease, began, err}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-h.kick:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// now has the lease prolonged at once.
func (h *leaseHolder) now() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

func (h *leaseHolder) extend(deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.deadline = deadline
	h.expiry.Reset(time.Until(deadline))
	if h.calls.Err() != nil {
		h.calls, h.cancel = context.WithCancel(h.parent)
	}
}

// expire ends the calls of the publisher: another instance may own the lanes now.
func (h *leaseHolder) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.deadline) { // else it was prolonged just now
		h.cancel()
	}
}

// term returns the context of calls that begin now. Not ok: the lease may be over.
func (h *leaseHolder) term() (ctx context.Context, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls, h.calls.Err() == nil && time.Now().Before(h.deadline)
}

// end gives up publishing; nothing of the lease is left behind.
func (h *leaseHolder) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.expiry.Stop()
	h.cancel()
}

// takeLease takes in what the instance owns now. An error is one to stop for.
func (in *instance) takeLease(r leaseResult) error {
	if r.err != nil {
		if err := in.fatal(r.err); err != nil {
			return err
		}
		in.restored = in.restored || errors.Is(r.err, ErrRestored)
		in.leaseOut.fail(in, r.err, time.Now())
		return nil
	}
	in.leaseOut.end(in)
	if r.began.Before(in.leasesSince) {
		return nil // It may not know what was settled since.
	}
	var taken, lost []int
	owns := make(map[int]bool, len(r.Lanes))
	for _, owned := range r.Lanes {
		if owned.Lane < 0 || owned.Lane >= len(in.lanes) {
			return in.otherLanes(owned.Lane)
		}
		owns[owned.Lane] = true
		if l := in.lanes[owned.Lane]; l != nil {
			if l.epoch == owned.Epoch {
				continue
			}
			in.drop(l)
			lost = append(lost, owned.Lane)
		}
		in.own(newLane(owned, in.windows))
		taken = append(taken, owned.Lane)
	}
	for _, l := range slices.Clone(in.owned) {
		if !owns[l.number] {
			in.drop(l)
			lost = append(lost, l.number)
		}
	}
	in.noteLanes(NoticeLost, lost)
	in.noteLanes(NoticeTaken, taken)
	in.shed(r.Share)
	if r.Due >= 0 {
		in.dueBy(time.Now().Add(r.Due))
	}
	return nil
}

// own adds a lane, to the stripe that has the fewest, or to that of a call which still
// has events of the lane from before it was lost.
func (in *instance) own(l *lane) {
	var counts [stripes]int
	for _, other := range in.owned {
		counts[other.stripe]++
	}
	for s, n := range counts {
		if n < counts[l.stripe] {
			l.stripe = s
		}
	}
	for s, c := range in.stripes {
		if c != nil && slices.ContainsFunc(c.runs, func(r run) bool { return r.lane.number == l.number }) {
			l.stripe = s
		}
	}
	in.lanes[l.number] = l
	in.owned = append(in.owned, l)
	slices.SortFunc(in.owned, func(a, b *lane) int { return a.number - b.number })
}

// drop forgets a lane with all that is in memory. A call of the publisher that has
// events of it goes on; its results are nobody's.
func (in *instance) drop(l *lane) {
	l.events(func(_ *chunk, e *Event) bool {
		in.dropped(e)
		return true
	})
	for i := range l.due {
		in.dropped(&l.due[i].Event)
	}
	l.queue, l.due = nil, nil
	in.lanes[l.number] = nil
	in.owned = slices.DeleteFunc(in.owned, func(other *lane) bool { return other == l })
	in.resumed(l)
}

// shed has the lanes above the share drained and released.
func (in *instance) shed(share int) {
	surplus := len(in.owned) - share
	for _, l := range in.owned {
		l.releasing = false
	}
	for _, idle := range []bool{true, false} { // Idle ones first: they are free at once.
		for i := len(in.owned) - 1; i >= 0 && surplus > 0; i-- {
			if l := in.owned[i]; in.busy[l.number] != idle {
				l.releasing = true
				surplus--
			}
		}
	}
}

// forget drops what was read of a lane and is not with the publisher.
func (in *instance) forget(l *lane) {
	l.rewind(in.dropped)
	for i := range l.due[l.dueSent:] {
		in.dropped(&l.due[l.dueSent+i].Event)
	}
	l.due = l.due[:l.dueSent]
}

// prepare learns what is set aside in lanes that were taken.
func (in *instance) prepare(now time.Time) {
	var numbers []int
	for _, l := range in.owned {
		if !l.prepared {
			numbers = append(numbers, l.number)
		}
	}
	var held []Aside
	if !in.ask("reading what is set aside", now, func(ctx context.Context) (err error) {
		held, err = in.store.Held(ctx, in.Name, numbers)
		return err
	}) {
		return
	}
	byLane := map[int][]Aside{}
	for _, aside := range held {
		byLane[aside.Lane] = append(byLane[aside.Lane], aside)
	}
	for _, number := range numbers {
		in.lanes[number].keeps(byLane[number], in.Policy)
	}
	in.dueBy(now)
}

func (in *instance) unprepared() bool {
	return slices.ContainsFunc(in.owned, func(l *lane) bool { return !l.prepared })
}

// fatal returns the error that Run ends with, if no waiting helps against err.
func (in *instance) fatal(err error) error {
	switch {
	case errors.Is(err, ErrNoRelay), errors.Is(err, ErrSettings), errors.Is(err, ErrLog):
		return err
	}
	return nil
}
