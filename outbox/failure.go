package outbox

// lineKey is what orders events.
type lineKey struct{ topic, key string }

// lines are the keys of a run of which an event failed, by whether it was set aside.
// If not it goes again with the lane, and those behind it too.
type lines map[lineKey]bool

// completeFailed takes in a run of a call in which something failed, and returns how
// many events were acknowledged.
func (in *instance) completeFailed(c *call, r *run) (published int) {
	l := r.lane
	f := failures{in: in, lane: l}
	for i := range c.events[r.from:r.to] {
		e, v := &c.events[r.from+i], c.verdicts[r.from+i]
		if r.due {
			f.aside = l.due[i].aside
		}
		if v.kind == acknowledged {
			published++
			if r.due {
				delete(l.retrying, e.Number)
				in.gone(l, f.aside, nil, e)
			}
			continue
		}
		f.take(e, v)
	}
	if r.due {
		in.dropDue(l, len(l.due)) // What is unhandled is due still; the rest may be behind it.
	} else {
		in.passHandled(l, f.unhandled)
	}
	if f.outage != nil {
		in.pause(l, f.outage)
	}
	return published
}

// failures are those of a run.
type failures struct {
	in    *instance
	lane  *lane
	aside Aside // of the event at hand, if it was set aside

	lines     lines
	unhandled map[int64]struct{} // to be published again
	outage    error
}

// take decides about an event that was not acknowledged.
func (f *failures) take(e *Event, v verdict) {
	key := lineKey{e.Topic, string(e.Key)}
	setAside, isBehind := f.lines[key]
	isBehind = isBehind && e.Key != nil
	handled := false
	switch {
	case isBehind: // whatever the verdict is: it must not overtake
		handled = setAside && f.in.Policy == ParkKey
		if handled && f.aside.State != Behind {
			f.in.putBehind(f.lane, e, f.keyHash(e))
		}
	case v.kind == unavailable, v.kind == behind: // Behind nothing: going on at once would be a busy loop.
		f.outage = v.err
	case v.kind == permanent:
		f.in.die(f.lane, e, f.keyHash(e), e.Attempts, v.err)
		handled = true
	default:
		f.in.fail(f.lane, e, f.keyHash(e), f.aside.State == Delayed, v.err)
		handled = true
	}
	if !isBehind && e.Key != nil {
		if f.lines == nil {
			f.lines = lines{}
		}
		f.lines[key] = handled
	}
	if !handled {
		if f.unhandled == nil {
			f.unhandled = map[int64]struct{}{}
		}
		f.unhandled[e.Number] = struct{}{}
	}
}

// keyHash is that of the event at hand. One that was set aside keeps it, whatever its
// row in the log says now: others are behind it.
func (f *failures) keyHash(e *Event) string {
	if f.aside.State != "" {
		return f.aside.KeyHash
	}
	return e.keyHash()
}

// passHandled moves a lane's position behind what is handled without a gap, and
// remembers what is handled behind the gap.
func (in *instance) passHandled(l *lane, unhandled map[int64]struct{}) {
	sent := l.take()
	if len(unhandled) == 0 {
		in.pass(l, sent)
	} else {
		prefix, seen := -1, 0
		l.events(func(_ *chunk, e *Event) bool {
			if seen == sent {
				return false
			}
			_, open := unhandled[e.Number]
			switch {
			case open && prefix < 0:
				prefix = seen
			case !open && prefix >= 0:
				l.remember(e.Number)
			}
			seen++
			return true
		})
		in.pass(l, prefix)
		l.unsaved.events = true
	}
	if l.blocked() {
		l.rewind(in.dropped) // It would fill the memory while it waits.
	}
}
