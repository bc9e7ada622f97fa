package outbox

import (
	"context"
	"time"
)

const (
	// settleEvery bounds how often positions are saved while events are published,
	// and so what a crash publishes twice. Saving is the only thing that leaves dead rows.
	settleEvery = 50 * time.Millisecond

	// settleIdle is how often positions are saved that passed only events of other topics.
	settleIdle = 10 * time.Second
)

// settleAt is when what was done is to be saved; zero: nothing was.
func (in *instance) settleAt() (at time.Time) {
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, l := range in.owned {
		switch {
		case len(l.unsaved.aside) > 0, len(l.unsaved.done) > 0, l.releasing && !in.busy[l.number]:
			return in.lastSettle // at once
		case l.unsaved.events:
			soonest(in.lastSettle.Add(settleEvery))
		case l.done.Position != l.saved:
			soonest(in.lastSettle.Add(settleIdle))
		}
	}
	return at
}

// settle saves what was done, and reports whether the store said so. If not it may be
// saved all the same: it goes again, with what was done since, before anything is read
// that could tell.
func (in *instance) settle(now time.Time) bool {
	s := Settlement{Relay: in.Name, Instance: in.name}
	var settled []*lane
	for _, l := range in.owned {
		release := l.releasing && !in.busy[l.number]
		if !release && l.done.Position == l.saved && len(l.unsaved.aside) == 0 && len(l.unsaved.done) == 0 {
			l.unsaved.events = false
			continue
		}
		settled = append(settled, l)
		s.Lanes = append(s.Lanes, LaneProgress{OwnedLane{l.number, l.epoch, l.done.Position}, release})
		s.Aside = append(s.Aside, l.unsaved.aside...)
		s.Done = append(s.Done, l.unsaved.done...)
	}
	in.urgent = false
	if len(settled) == 0 {
		return true
	}
	var result Settled
	// Not with the context of Run: what was published is worth saving.
	if !in.askFor(context.WithoutCancel(in.ctx), storeTimeout, "saving progress", now, func(ctx context.Context) (err error) {
		result, err = in.store.Settle(ctx, s)
		return err
	}) {
		return false
	}
	in.lastSettle = time.Now()
	var lost []*lane
	for _, number := range result.Lost {
		if number >= 0 && number < len(in.lanes) && in.lanes[number] != nil {
			lost = append(lost, in.lanes[number])
		}
	}
	in.lose(lost)
	var released []int
	for i, l := range settled {
		if in.lanes[l.number] != l {
			continue
		}
		in.saved(l, s.Lanes[i].Position)
		if s.Lanes[i].Release {
			in.drop(l)
			released = append(released, l.number)
		}
	}
	for _, hash := range result.Freed {
		for _, l := range in.owned {
			delete(l.parked, hash)
		}
	}
	if len(released) > 0 {
		in.noteLanes(NoticeReleased, released)
		in.leasesSince = time.Now() // A lease from before says that they are ours.
		in.lease.now()
	}
	return true
}

// saved: what was waiting for it may be told.
func (in *instance) saved(l *lane, at Position) {
	l.saved = at
	in.report.notices(l.unsaved.notices)
	l.unsaved = unsaved{}
}

// lose drops lanes; what the store says of them is asked for at once.
func (in *instance) lose(lanes []*lane) {
	if len(lanes) == 0 {
		return
	}
	numbers := make([]int, len(lanes))
	for i, l := range lanes {
		numbers[i] = l.number
		in.drop(l)
	}
	in.noteLanes(NoticeLost, numbers)
	in.leasesSince = time.Now()
	in.lease.now()
}
