package outbox

import (
	"context"
	"fmt"
	"time"
)

// minRead is how many events are asked for at least, if Batch is not less: an estimate may be wrong.
const minRead = 64

// readable: its next events may be read and published.
func (in *instance) readable(l *lane) bool {
	return l.prepared && !l.releasing && !l.waiting && !in.stalled(l) && !l.blocked()
}

// stalled: the call that it has to wait for takes so long that nothing is read ahead.
func (in *instance) stalled(l *lane) bool {
	c := in.stripes[l.stripe]
	return c != nil && c.stalled
}

// room: a batch may be read, which is less than half of one that was read ahead. What is
// with the publisher does not count: it is bounded by the number of calls, and however
// long they take, others must be read.
func (in *instance) room() bool {
	events, bytes := in.events, in.bytes
	for _, c := range in.stripes {
		if c == nil {
			continue
		}
		for i := range c.runs {
			if r := &c.runs[i]; in.lanes[r.lane.number] == r.lane {
				events -= r.taken
				bytes -= r.bytes
			}
		}
	}
	return events <= in.Batch/2 && bytes <= in.BatchBytes/2
}

// nextGroup returns the lanes to be read next, all of which stand together. Groups take
// turns, or one that is far behind would keep the others from new events.
func (in *instance) nextGroup() []*lane {
	n := len(in.owned)
	var first *lane
	for i := range n {
		l := in.owned[(in.readTurn+i)%n]
		if l.look && in.readable(l) {
			first = l
			in.readTurn = (in.readTurn + i + 1) % n
			break
		}
	}
	if first == nil {
		return nil
	}
	in.group = in.group[:0]
	for _, l := range in.owned {
		if l.read.Position == first.read.Position && in.readable(l) {
			in.group = append(in.group, l)
		}
	}
	return in.group
}

// meeting returns where the lanes that are furthest ahead stand, if f is behind.
func (in *instance) meeting(f *frontier) *frontier {
	var ahead *frontier
	if f.open() {
		return nil
	}
	for _, l := range in.owned {
		at := &l.read
		if at.meeting() && at.Position != f.Position && f.behind(at) && in.readable(l) && (ahead == nil || ahead.behind(at)) {
			ahead = at
		}
	}
	return ahead
}

// read reads the next events of a group of lanes, and reports whether it did.
func (in *instance) read(now time.Time) bool {
	if !in.room() {
		in.makeRoom(now)
		return false
	}
	group := in.nextGroup()
	if group == nil {
		return false
	}
	at := group[0].read
	numbers := make([]int, len(group))
	for i, l := range group {
		numbers[i] = l.number
		if at.foreign && (!l.read.foreign || l.read.age < at.age) {
			at = l.read // It knows more of the same position.
		}
	}
	request := ReadRequest{
		Relay: in.Name, Lanes: numbers, AllLanes: in.Lanes, Topics: in.Topics,
		Position: at.Position, Limit: in.readLimit(), MaxBytes: in.BatchBytes,
	}
	target := at.target
	until := in.meeting(&at)
	switch {
	case until != nil:
		request.Until, target = until.Position, until.age
	case !at.open():
		in.windows++
		target = in.windows
	}
	var result Chunk
	if !in.ask("reading the log", now, func(ctx context.Context) (err error) {
		if result, err = in.store.Read(ctx, request); err == nil {
			err = in.checkChunk(&result, numbers)
		}
		return err
	}) {
		return true
	}
	window, end := at, at
	window.Position, window.target = result.Window, target
	end.Position, end.target = result.End, target
	switch {
	case until != nil && !result.More:
		end = *until // also if there was nothing to pass up to there
	case result.End == at.Position:
		end = at // Its snapshot is no newer than it was.
	case !end.open():
		end = frontier{Position: result.End, age: target, foreign: at.foreign && target == at.age}
	}
	in.enqueue(group, result.Events, window, end)
	for _, l := range group {
		l.look = result.More
	}
	if len(result.Events) > 0 {
		in.poll.soon(now)
	}
	return true
}

// readLimit is how many events fit into BatchBytes if they are like the last ones: what a store
// reads beyond those is read in vain.
func (in *instance) readLimit() int {
	return min(in.Batch, max(minRead, in.BatchBytes/max(1, in.eventSize)))
}

// checkChunk: an event of a lane that was not asked for would be lost.
func (in *instance) checkChunk(result *Chunk, lanes []int) error {
	clear(in.counts)
	for _, number := range lanes {
		in.counts[number] = 1
	}
	for i := range result.Events {
		if n := result.Events[i].Lane; n < 0 || n >= len(in.counts) || in.counts[n] == 0 {
			return fmt.Errorf("the store returned event %d of lane %d, which was not asked for", result.Events[i].Number, n)
		}
	}
	return nil
}

// enqueue gives each lane of the group its events of a chunk.
func (in *instance) enqueue(group []*lane, events []Event, window, end frontier) {
	c := &chunk{events: events, window: window, readAt: time.Now()}
	clear(in.counts)
	bytes, size := 0, 0
	for i := range events {
		in.counts[events[i].Lane]++
		bytes += events[i].size()
		size += events[i].Size()
	}
	in.events += len(events)
	in.bytes += bytes
	if len(events) > 0 {
		in.eventSize = size / len(events)
	}
	places := make([]int32, len(events))
	next := int32(0)
	for _, l := range group {
		n := in.counts[l.number]
		l.enqueue(segment{chunk: c, places: places[next : next+n : next+n], end: end})
		in.counts[l.number] = next // where its next event goes
		next += n
	}
	for i := range events {
		n := events[i].Lane
		places[in.counts[n]] = int32(i)
		in.counts[n]++
	}
}

// dropped is called for each event that leaves the memory. Its chunk may stay for as long as
// another lane needs it, which must not keep the payloads of all.
func (in *instance) dropped(e *Event) {
	in.events--
	in.bytes -= e.size()
	e.Message = Message{}
}

// makeRoom: while nothing more can be read, what was read ahead for lanes that wait for
// slow calls is forgotten, so that they do not hold up others.
func (in *instance) makeRoom(now time.Time) {
	for stripe, c := range in.stripes {
		if c == nil || c.stalled || now.Sub(c.began) < stalledAfter {
			continue
		}
		c.stalled = true
		for _, l := range in.owned {
			if l.stripe == stripe {
				in.forget(l)
			}
		}
	}
}

// unstall has the lanes of a stripe read again, whose call has ended.
func (in *instance) unstall(stripe int) {
	for _, l := range in.owned {
		l.look = l.look || l.stripe == stripe
	}
	in.dueBy(time.Now())
}

// readDue reads what was set aside and is due now, and reports whether it did.
func (in *instance) readDue(now time.Time) bool {
	if in.dueAt.IsZero() || now.Before(in.dueAt) {
		return false
	}
	if !in.room() {
		in.makeRoom(now)
		return false
	}
	var numbers []int
	for _, l := range in.owned {
		if l.prepared && !l.releasing && !l.waiting && !in.stalled(l) && len(l.due) == 0 {
			numbers = append(numbers, l.number)
		}
	}
	in.dueAt = time.Time{} // Lanes that were left out ask again when they can.
	if len(numbers) == 0 {
		return false
	}
	var due Due
	if !in.ask("reading what is due", now, func(ctx context.Context) (err error) {
		due, err = in.store.Due(ctx, in.Name, numbers, in.Batch, in.BatchBytes)
		if err == nil && len(due.Asides) != len(due.Events) {
			err = fmt.Errorf("the store returned %d events that are due and %d rows of them", len(due.Events), len(due.Asides))
		}
		if err == nil {
			err = in.checkChunk(&Chunk{Events: due.Events}, numbers)
		}
		return err
	}) {
		in.dueAt = now
		return true
	}
	for i := range due.Events {
		e := &due.Events[i]
		e.Attempts = due.Asides[i].Attempts
		in.events++
		in.bytes += e.size()
		l := in.lanes[e.Lane]
		l.due = append(l.due, dueEvent{*e, due.Asides[i]})
	}
	if due.Next >= 0 {
		in.dueBy(now.Add(due.Next))
	}
	return true
}

// dueBy has Due asked at a time, or earlier.
func (in *instance) dueBy(at time.Time) {
	if in.dueAt.IsZero() || at.Before(in.dueAt) {
		in.dueAt = at
	}
}
