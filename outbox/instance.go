package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"
)

// storeTimeout bounds every statement of the store but Register: nothing hangs for ever.
const storeTimeout = 10 * time.Second

// instance is one Run of a relay. All its state belongs to the goroutine of run, which
// also calls the store; the publisher is called beside it, and the lease is prolonged
// beside it.
type instance struct {
	*Relay

	name string
	ctx  context.Context
	err  error // to end with

	lease  *leaseHolder
	lanes  []*lane // by number; nil: not owned
	owned  []*lane
	busy   []bool // by number: events of it are with the publisher
	counts []int32
	group  []*lane
	// leasesSince: older leases say nothing.
	leasesSince time.Time

	stripes  [stripes]*call
	inFlight int
	spare    []*call
	results  chan *call

	// events and bytes are in memory.
	events, bytes int
	// eventSize is that of one of those that were read last.
	eventSize int
	windows   uint64
	turn      int
	readTurn  int

	poll       poll
	dueAt      time.Time // zero: nothing is known to be due
	lastSettle time.Time
	urgent     bool // something is to be saved at once

	storeOut, leaseOut outage
	patience           time.Duration // with Register
	restored           bool          // the log is to be adopted
	paused             int           // lanes
}

func newInstance(ctx context.Context, r *Relay) *instance {
	in := &instance{
		Relay: r, name: instanceName(), ctx: ctx,
		lanes: make([]*lane, r.Lanes), busy: make([]bool, r.Lanes), counts: make([]int32, r.Lanes),
		results: make(chan *call, stripes), lastSettle: time.Now().Add(-settleEvery),
		poll: poll{limit: r.Poll}, patience: storeTimeout,
	}
	in.lease = newLeaseHolder(context.WithoutCancel(ctx), in)
	in.storeOut.what, in.leaseOut.what = "store", "lease"
	return in
}

// instanceName tells a person which process it is, and is never used twice.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.60s-%d-%s", host, os.Getpid(), rand.Text()[:8])
}

// run works until the context ends or no waiting helps.
func (in *instance) run(raised <-chan struct{}) error {
	for in.ctx.Err() == nil && in.err == nil {
		now := time.Now()
		in.collect()
		in.unpause(now)
		worked := in.dispatch(now)
		if !now.Before(in.storeOut.retryAt) {
			worked = in.askStore(now) || worked
		}
		if !worked {
			in.wait(now, raised)
		}
	}
	return in.err
}

// collect takes in what is there without waiting.
func (in *instance) collect() {
	for {
		select {
		case c := <-in.results:
			in.complete(c)
		case r := <-in.lease.results:
			in.err = in.takeLease(r)
		default:
			return
		}
		if in.err != nil {
			return
		}
	}
}

// askStore does what is next to be done at the store, and reports whether there was anything.
func (in *instance) askStore(now time.Time) bool {
	if in.restored {
		in.adopt(now)
		return true
	}
	if in.unprepared() {
		in.prepare(now)
		return true
	}
	if at := in.settleAt(); in.urgent || !at.IsZero() && !now.Before(at) {
		in.settle(now)
		return true
	}
	if in.readDue(now) {
		return true
	}
	if in.poll.due(now) {
		for _, l := range in.owned {
			l.look = true
		}
	}
	return in.read(now)
}

// wait waits until something happens or is to be done.
func (in *instance) wait(now time.Time, raised <-chan struct{}) {
	timer := time.NewTimer(in.next(now).Sub(now))
	defer timer.Stop()
	select {
	case <-in.ctx.Done():
	case c := <-in.results:
		in.complete(c)
	case r := <-in.lease.results:
		in.err = in.takeLease(r)
	case <-raised:
		in.poll.soon(time.Now()) // The commit is near, but not yet.
	case <-in.wake:
		in.poll.now(time.Now())
	case <-timer.C:
	}
	in.noteStuck(time.Now())
}

// next is when there is something to do, if nothing happens before.
func (in *instance) next(now time.Time) time.Time {
	next := now.Add(time.Hour)
	by := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	if now.Before(in.storeOut.retryAt) {
		by(in.storeOut.retryAt)
	} else {
		by(in.poll.at)
		if at := in.settleAt(); !at.IsZero() {
			by(at)
		}
		if in.dueAt.After(now) { // else it waits for room
			by(in.dueAt)
		}
	}
	if in.paused > 0 {
		for _, l := range in.owned {
			if l.waiting {
				by(l.resumeAt)
			}
		}
	}
	room := in.room()
	for _, c := range in.stripes {
		if c == nil {
			continue
		}
		if !room && !c.stalled {
			by(c.began.Add(stalledAfter))
		}
		if !c.stuck {
			by(c.began.Add(in.PublishTimeout + callGrace))
		}
	}
	return next
}

// ask is one statement of the store for as long as Run's context lasts. It reports
// whether it succeeded.
func (in *instance) ask(doing string, now time.Time, statement func(context.Context) error) bool {
	return in.askFor(in.ctx, storeTimeout, doing, now, statement)
}

func (in *instance) askFor(ctx context.Context, timeout time.Duration, doing string, now time.Time, statement func(context.Context) error) bool {
	call, cancel := context.WithTimeout(ctx, timeout)
	err := statement(call)
	cancel()
	switch {
	case err == nil:
		in.storeOut.end(in)
		return true
	case ctx.Err() != nil:
		return false
	}
	if in.err = in.fatal(err); in.err != nil {
		in.err = fmt.Errorf("outbox: %s: %w", doing, in.err)
		return false
	}
	in.restored = in.restored || errors.Is(err, ErrRestored)
	in.storeOut.fail(in, fmt.Errorf("%s: %w", doing, err), now)
	return false
}

// adopt registers anew: the log was restored into another cluster while this ran.
func (in *instance) adopt(now time.Time) {
	if in.askFor(in.ctx, maxRegister, "adopting a log that was restored", now, in.register) {
		in.restored = false
		in.lose(append([]*lane(nil), in.owned...))
	}
}

func (in *instance) otherLanes(number int) error {
	return fmt.Errorf("outbox: lane %d of relay %q: %w: it has %d lanes here, other ones in the store: "+
		"start all instances with what ChangeLanes was given", number, in.Name, ErrSettings, in.Lanes)
}

// stop waits for what is with the publisher, and saves what was done.
func (in *instance) stop() error {
	stuck := in.drain()
	in.lease.end()
	var problems []error
	if stuck > 0 {
		problems = append(problems, fmt.Errorf("outbox: relay %q: %d calls of the publisher did not return within %v of their context's end: "+
			"their goroutines are left behind; the publisher must heed its context", in.Name, stuck, callGrace))
	}
	saved := in.settle(time.Now())
	if !saved {
		saved = in.settle(time.Now()) // A connection that was lost costs no copies.
	}
	if !saved {
		problems = append(problems, fmt.Errorf("outbox: relay %q stopped, but what it published last could not be saved: it is published again", in.Name))
	}
	return errors.Join(problems...)
}

// drain waits for calls of the publisher for StopTimeout, then ends their context. It
// returns how many do not return even then.
func (in *instance) drain() (stuck int) {
	patience := time.NewTimer(in.StopTimeout)
	defer patience.Stop()
	for ended := false; in.inFlight > 0; {
		select {
		case c := <-in.results:
			in.complete(c)
		case <-patience.C:
			if ended {
				return in.inFlight
			}
			ended = true
			in.lease.end()
			patience.Reset(callGrace)
		}
	}
	return 0
}

// leave frees the lanes, once nothing prolongs the lease any more.
func (in *instance) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.ctx), storeTimeout)
	defer cancel()
	if err := in.store.Leave(ctx, in.Name, in.name); err != nil {
		in.report.left(err)
		return
	}
	numbers := make([]int, len(in.owned))
	for i, l := range in.owned {
		numbers[i] = l.number
	}
	in.noteLanes(NoticeReleased, numbers)
}
