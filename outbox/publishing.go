package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/onceward/onceward/internal/panicvalue"
)

const (
	// stripes is how many calls of the publisher go on at a time: enough that one
	// lane's round trip does not hold up the others, few enough that calls are large.
	stripes = 4

	// stalledAfter is when a call counts as slow: what was read ahead for lanes that
	// wait for it gives its place to others.
	stalledAfter = 250 * time.Millisecond

	// callGrace is what a publisher has to return after its context has ended.
	callGrace = time.Second
)

// call is one call of the publisher, with events of lanes of one stripe. It belongs to
// the instance, but for the time of Publish; its slices are used again.
type call struct {
	stripe int
	runs   []run
	events []Event
	bytes  int

	cancel  context.CancelFunc
	began   time.Time
	took    time.Duration
	stuck   bool // and reported
	stalled bool

	// failed: there are verdicts, one for each event.
	failed   bool
	verdicts []verdict
	// stack of a publisher that panicked.
	stack string
}

// run is what a call has of one lane: events[from:to].
type run struct {
	lane     *lane
	from, to int
	due      bool

	// taken of what was read, with what was sorted out on the way, and its bytes.
	taken, bytes int
}

// dispatch starts calls of the publisher for the lanes that have something, and
// reports whether that, or sorting alone, has changed anything.
func (in *instance) dispatch(now time.Time) (changed bool) {
	term, ok := in.lease.term()
	if !ok {
		return false // Another instance may own the lanes.
	}
	for s := range in.stripes {
		if in.stripes[s] != nil {
			continue
		}
		c := in.newCall(s)
		if in.fill(c, now) {
			changed = true
		}
		if len(c.events) == 0 {
			in.spare = append(in.spare, c)
			continue
		}
		in.start(term, c, now)
	}
	return changed
}

func (in *instance) newCall(stripe int) *call {
	if n := len(in.spare); n > 0 {
		c := in.spare[n-1]
		in.spare = in.spare[:n-1]
		c.stripe = stripe
		return c
	}
	return &call{stripe: stripe}
}

// recycle keeps the slices, and none of what they point to.
func (in *instance) recycle(c *call) {
	clear(c.events)
	clear(c.runs)
	clear(c.verdicts)
	*c = call{events: c.events[:0], runs: c.runs[:0], verdicts: c.verdicts[:0]}
	in.spare = append(in.spare, c)
}

// fill puts what the lanes of a stripe have into a call, each in its turn first, so
// that a long one does not always leave nothing for others.
func (in *instance) fill(c *call, now time.Time) (changed bool) {
	n := len(in.owned)
	for i := range n {
		l := in.owned[(i+in.turn)%n]
		if l.stripe != c.stripe || in.busy[l.number] || !l.prepared || l.releasing || l.waiting {
			continue
		}
		if in.full(c) {
			break
		}
		before := len(c.events)
		switch {
		case len(l.due) > 0:
			changed = in.takeDue(c, l) || changed
		case len(l.queue) > 0 && !l.blocked():
			changed = in.takeQueue(c, l, now) || changed
		}
		if len(c.events) > before {
			in.busy[l.number] = true
			changed = true
		}
	}
	in.turn++
	return changed
}

func (in *instance) full(c *call) bool {
	return len(c.events) >= max(1, in.Batch/2) || c.bytes >= max(1, in.BatchBytes/2)
}

func (c *call) add(e *Event) {
	c.events = append(c.events, *e)
	c.bytes += e.size()
}

// takeQueue takes the oldest events of a lane. What is not to be published now is
// sorted out on the way, and handled with it.
func (in *instance) takeQueue(c *call, l *lane, now time.Time) (changed bool) {
	from, bytes, plain := len(c.events), c.bytes, l.plain()
	sortedOut := 0 // bytes
	l.sent = 0
	l.events(func(ch *chunk, e *Event) bool {
		if in.full(c) {
			return false
		}
		if plain && e.Waits <= 0 && e.Invalid == nil || in.publishable(l, e, ch.readAt, now) {
			c.add(e)
		} else {
			plain = l.plain()
			sortedOut += e.size()
		}
		l.sent++
		return true
	})
	if len(c.events) == from {
		// Nothing is with the publisher, so nothing can fail behind it.
		n := l.sent
		l.sent = 0
		in.pass(l, n)
		return n > 0
	}
	c.runs = append(c.runs, run{lane: l, from: from, to: len(c.events), taken: l.sent, bytes: c.bytes - bytes + sortedOut})
	return true
}

// takeDue takes what was set aside and is due.
func (in *instance) takeDue(c *call, l *lane) (changed bool) {
	from, bytes := len(c.events), c.bytes
	l.dueSent = 0
	kept, dead := l.due[:0], ""
	for i := range l.due {
		d := &l.due[i]
		if dead != "" && d.aside.State == Behind && d.aside.KeyHash == dead {
			in.dropped(&d.Event) // It follows what it is behind, and that has just died.
			continue
		}
		if len(kept) == l.dueSent && !in.full(c) {
			if !in.duePublishable(l, d) {
				if d.Invalid != nil {
					dead = d.aside.KeyHash
				}
				in.dropped(&d.Event)
				changed = true
				continue
			}
			c.add(&d.Event)
			l.dueSent++
		}
		kept = append(kept, *d)
	}
	clear(l.due[len(kept):])
	l.due = kept
	if l.dueSent > 0 {
		c.runs = append(c.runs, run{lane: l, from: from, to: len(c.events), due: true, taken: l.dueSent, bytes: c.bytes - bytes})
	}
	return changed || l.dueSent > 0
}

func (in *instance) start(term context.Context, c *call, now time.Time) {
	ctx, cancel := context.WithTimeout(term, in.PublishTimeout)
	c.cancel, c.began = cancel, now
	in.stripes[c.stripe] = c
	in.inFlight++
	go func() {
		defer func() { in.results <- c }() // has room for all
		in.publish(ctx, c)
	}()
}

// publish calls the publisher. It runs beside the instance, and touches the call only.
func (in *instance) publish(ctx context.Context, c *call) {
	publishSafely(ctx, in.publisher, c.events, func(results []error) { c.finish(ctx, results) })
}

// finish notes what the results mean.
func (c *call) finish(ctx context.Context, results []error) {
	for _, err := range results {
		if err != nil {
			c.failed = true
			break
		}
	}
	if c.failed {
		for i, err := range results {
			if panicked, ok := err.(*panicError); ok && i == 0 { //nolint:errorlint // our own, unwrapped
				c.stack = panicked.stack
			}
			c.verdicts = append(c.verdicts, judge(ctx, err))
		}
	}
	c.took = time.Since(c.began)
	c.cancel()
}

// publishSafely calls settle with one result for each event, whatever the publisher does:
// also when it ends the goroutine, which does not return from here then.
func publishSafely(ctx context.Context, publisher Publisher, events []Event, settle func(results []error)) {
	var results []error
	defer func() {
		switch value := recover(); {
		case value != nil:
			results = allFailed(len(events), &panicError{value: panicvalue.Text(value), stack: string(debug.Stack())})
		case results == nil:
			results = allFailed(len(events), errExited)
		}
		settle(results)
	}()
	returned := publisher.Publish(ctx, events)
	if len(returned) != len(events) {
		returned = allFailed(len(events), fmt.Errorf("%w: the publisher returned %d results for %d events: it must return one for each",
			ErrUnavailable, len(returned), len(events)))
	}
	results = returned
}

var errExited = fmt.Errorf("%w: the publisher ended its goroutine with runtime.Goexit (t.FailNow does that too): it must return errors instead", ErrUnavailable)

// panicError: a publisher that panicked has left it unknown what was sent.
type panicError struct{ value, stack string }

func (e *panicError) Error() string { return "publisher panicked: " + e.value }

func (e *panicError) Unwrap() error { return ErrUnavailable }

func allFailed(n int, err error) []error {
	results := make([]error, n)
	for i := range results {
		results[i] = err
	}
	return results
}

// verdict is what the result for one event means.
type verdict struct {
	kind verdictKind
	err  error
}

type verdictKind uint8

const (
	acknowledged verdictKind = iota
	unavailable
	permanent
	failed
	behind
)

// judge reads an error of a publisher, whose methods are code of the user and may
// panic, as those of a nil pointer do.
func judge(ctx context.Context, err error) (v verdict) {
	if err == nil {
		return verdict{}
	}
	defer func() {
		if value := recover(); value != nil {
			v = verdict{failed, fmt.Errorf("the error that the publisher returned, a %T, can't be read; is it a nil pointer? %s", err, panicvalue.Text(value))}
		}
	}()
	v.err = &publisherError{err, err.Error()}
	switch {
	case errors.Is(err, ErrUnavailable):
		v.kind = unavailable
	case errors.Is(err, ErrBehind):
		v.kind = behind
	case errors.Is(err, ErrPermanent):
		v.kind = permanent
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		v.kind = unavailable // It says nothing about the event.
	default:
		v.kind = failed
	}
	return v
}
