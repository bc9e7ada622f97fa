package outbox

import "time"

// frontier is a position with its age, by which lanes that stand apart find
// out who is ahead. Snapshots are counted as their windows are opened by this instance:
// age is that of Seen, target that of Target.
type frontier struct {
	Position

	age, target uint64
	// foreign: found in the store. All that is known of Seen is that windows
	// opened since, those above age, are later. The same is true of Target if it
	// is of that age.
	foreign bool
}

// open: in the midst of a window.
func (f *frontier) open() bool { return f.Target != "" }

// meeting: others can read up to here.
func (f *frontier) meeting() bool { return !f.open() && !f.foreign && f.Replay == 0 }

// behind reports whether all that is handled in f is handled in other as well;
// other is not f.
func (f *frontier) behind(other *frontier) bool {
	if f.Seen == "" && other.Seen == "" {
		return f.Last < other.Last // a store without snapshots
	}
	return f.age < other.age
}

// chunk is what one Read returned, shared by the lanes it was for.
type chunk struct {
	events []Event
	window frontier // without Last
	readAt time.Time
}

// segment is what a chunk has for one lane.
type segment struct {
	*chunk

	places []int32  // its events in the chunk
	end    frontier // behind all of them
}

// lane is one that this instance owns. All before done is handled; what stands in
// the queue was read and is not; the first sent of it are with the publisher.
type lane struct {
	number int
	epoch  int64
	stripe int

	saved Position
	done  frontier
	read  frontier
	queue []segment
	sent  int

	// due was set aside and is to be published now. Due is not asked again
	// before it is settled.
	due     []dueEvent
	dueSent int

	// prepared: what is set aside in the store is known.
	prepared bool
	// look: there may be something to read.
	look      bool
	releasing bool

	// waiting until resumeAt: its destination is unavailable.
	waiting     bool
	resumeAt    time.Time
	pausedSince time.Time
	pauses      int

	// handled are numbers behind done that are handled. Nil while there are none,
	// like all of these. What is skipped stays there until done has passed it.
	handled map[int64]struct{}
	skipped map[int64]Aside
	// retrying hold up the lane (BlockLane), parked are KeyHashes that hold up
	// their keys (ParkKey).
	retrying map[int64]struct{}
	parked   map[string]struct{}

	unsaved unsaved
}

type dueEvent struct {
	Event

	aside Aside
}

// unsaved is what goes with the next settlement, and is reported when that is saved.
type unsaved struct {
	events  bool // were handled since the last one
	aside   []Aside
	done    []Aside
	notices []Notice
}

func newLane(owned OwnedLane, windows uint64) *lane {
	at := frontier{Position: owned.Position, age: windows, target: windows, foreign: true}
	return &lane{number: owned.Lane, epoch: owned.Epoch, saved: owned.Position, done: at, read: at, look: true}
}

// blocked: it waits for an event of it that is retrying.
func (l *lane) blocked() bool { return len(l.retrying) > 0 }

// plain: nothing is known of single events or keys, so they need no look.
func (l *lane) plain() bool {
	return len(l.handled) == 0 && len(l.skipped) == 0 && len(l.parked) == 0
}

// enqueue adds what was read.
func (l *lane) enqueue(s segment) {
	l.read = s.end
	if len(s.places) == 0 && len(l.queue) == 0 {
		l.done = s.end
		return
	}
	l.queue = append(l.queue, s)
}

// consume moves done behind the first n events of the queue.
func (l *lane) consume(n int, drop func(*Event)) {
	if n > 0 {
		l.unsaved.events = true
	}
	for len(l.queue) > 0 {
		s := &l.queue[0]
		if n < len(s.places) {
			if n == 0 {
				return
			}
			for _, place := range s.places[:n] {
				drop(&s.events[place])
			}
			l.done = s.behind(s.places[n-1])
			s.places = s.places[n:]
			return
		}
		for _, place := range s.places {
			drop(&s.events[place])
		}
		n -= len(s.places)
		l.done = s.end
		l.pop()
	}
}

func (l *lane) pop() {
	l.queue[0] = segment{} // for the garbage collector
	l.queue = l.queue[1:]
	if len(l.queue) == 0 {
		l.queue = nil
	}
}

// behind is the frontier right behind one of the chunk's events.
func (c *chunk) behind(place int32) frontier {
	at := c.window
	at.Position = c.window.Behind(c.events[place])
	return at
}

// rewind forgets what was read and is not with the publisher: it is read again.
func (l *lane) rewind(drop func(*Event)) {
	keep := l.sent
	l.read = l.done
	kept := len(l.queue)
	for i := range l.queue {
		s := &l.queue[i]
		if kept <= i || keep < len(s.places) {
			for _, place := range s.places[keep:] {
				drop(&s.events[place])
			}
			kept = min(kept, i)
			if keep > 0 {
				l.read = s.behind(s.places[keep-1])
				s.places, s.end = s.places[:keep], l.read
				kept = i + 1
			}
			keep = 0
			continue
		}
		keep -= len(s.places)
		l.read = s.end
	}
	clear(l.queue[kept:])
	l.queue = l.queue[:kept]
	l.look = true
}

// events calls visit for the events of the queue, oldest first, while it returns true.
func (l *lane) events(visit func(*chunk, *Event) bool) {
	for i := range l.queue {
		s := &l.queue[i]
		for _, place := range s.places {
			if !visit(s.chunk, &s.events[place]) {
				return
			}
		}
	}
}

// remember notes that an event behind done is handled.
func (l *lane) remember(number int64) {
	if l.handled == nil {
		l.handled = map[int64]struct{}{}
	}
	l.handled[number] = struct{}{}
}

// block has the lane wait for an event.
func (l *lane) block(number int64) {
	if l.retrying == nil {
		l.retrying = map[int64]struct{}{}
	}
	l.retrying[number] = struct{}{}
}

// park has later events of a key wait.
func (l *lane) park(hash string) {
	if l.parked == nil {
		l.parked = map[string]struct{}{}
	}
	l.parked[hash] = struct{}{}
}

func (l *lane) hasParked(hash string) bool {
	_, ok := l.parked[hash]
	return hash != "" && ok
}

// keeps takes in what the store holds of the lane.
func (l *lane) keeps(aside []Aside, policy Policy) {
	for _, a := range aside {
		switch {
		case a.State == Skipped:
			if l.skipped == nil {
				l.skipped = map[int64]Aside{}
			}
			l.skipped[a.Number] = a
			continue
		case a.State == Delayed:
		case policy == ParkKey:
			if a.KeyHash != "" {
				l.park(a.KeyHash)
			}
		case a.State == Retrying:
			l.block(a.Number)
		}
		if a.Ahead {
			l.remember(a.Number)
		}
	}
	l.prepared = true
}
