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
	var (
		stuck     lines
		unhandled map[int64]struct{}
		outage    error
	)
	events, verdicts := c.events[r.from:r.to], c.verdicts[r.from:r.to]
	for i := range events {
		e, v := &events[i], verdicts[i]
		if v.kind == acknowledged {
			published++
			if r.due {
				delete(l.retrying, e.Number)
				in.gone(l, l.due[i].aside, nil, e)
			}
			continue
		}
		key := lineKey{e.Topic, string(e.Key)}
		asideBefore, isBehind := stuck[key]
		isBehind = isBehind && e.Key != nil
		if v.kind == behind && !isBehind {
			v.kind = unavailable // Behind nothing: going on at once would be a busy loop.
		}
		handled := false
		switch {
		case isBehind:
			handled = asideBefore && in.Policy == ParkKey
			if handled && !(r.due && l.due[i].aside.State == Behind) {
				in.putBehind(l, e, e.keyHash())
			}
		case v.kind == unavailable:
			outage = v.err
		case v.kind == permanent:
			in.die(l, e, e.Attempts, v.err)
			handled = true
		default:
			in.fail(l, e, r.due && l.due[i].aside.State == Delayed, v.err)
			handled = true
		}
		if !isBehind && e.Key != nil {
			if stuck == nil {
				stuck = lines{}
			}
			stuck[key] = handled
		}
		if !handled {
			if unhandled == nil {
				unhandled = map[int64]struct{}{}
			}
			unhandled[e.Number] = struct{}{}
		}
	}
	if r.due {
		in.dropDue(l, len(l.due)) // What is unhandled is due still; the rest may be behind it.
	} else {
		in.passHandled(l, unhandled)
	}
	if outage != nil {
		in.pause(l, outage)
	}
	return published
}

// passHandled moves a lane's position behind what is handled without a gap, and
// remembers what is handled behind the gap. The rest is read again.
func (in *instance) passHandled(l *lane, unhandled map[int64]struct{}) {
	sent := l.take()
	if len(unhandled) == 0 {
		l.consume(sent, in.dropped)
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
		l.consume(prefix, in.dropped)
		l.unsaved.events = true
	}
	if len(unhandled) > 0 || l.blocked(in.Policy) {
		l.rewind(in.dropped)
	}
}
