package outbox

import "time"

// publishable sorts an event that the position reaches: it is to be published, or it
// is handled in another way, of which the next settlement tells.
func (in *instance) publishable(l *lane, e *Event, readAt, now time.Time) bool {
	if _, ok := l.handled[e.Number]; ok {
		delete(l.handled, e.Number)
		return false
	}
	if _, ok := l.skipped[e.Number]; ok {
		return false
	}
	if e.Invalid != nil {
		in.die(l, e, e.keyHash(), e.Attempts, e.Invalid)
		return false
	}
	if e.Waits > 0 {
		waits := max(0, e.Waits-now.Sub(readAt))
		in.delay(l, Aside{Number: e.Number, Lane: l.number, State: Delayed, KeyHash: e.keyHash(), After: waits, Attempts: e.Attempts})
		in.dueBy(now.Add(waits))
		return false
	}
	if len(l.parked) > 0 {
		if hash := e.keyHash(); l.hasParked(hash) {
			in.putBehind(l, e, hash)
			return false
		}
	}
	return true
}

// duePublishable sorts an event that was set aside and is due.
func (in *instance) duePublishable(l *lane, d *dueEvent) bool {
	if d.Invalid != nil {
		in.die(l, &d.Event, d.aside.KeyHash, d.Attempts, d.Invalid)
		return false
	}
	// A delayed event comes into its key's line when it is due.
	if d.aside.State == Delayed && len(l.parked) > 0 {
		if hash := d.aside.KeyHash; l.hasParked(hash) {
			in.putBehind(l, &d.Event, hash)
			return false
		}
	}
	return true
}

func (in *instance) setAside(l *lane, aside Aside, notice Notice, e *Event) {
	l.unsaved.aside = append(l.unsaved.aside, aside)
	in.noteLater(l, notice, e)
}

// gone removes what was set aside.
func (in *instance) gone(l *lane, aside Aside, notice *Notice, e *Event) {
	l.unsaved.done = append(l.unsaved.done, aside)
	if notice != nil {
		in.noteLater(l, *notice, e)
	}
}

func (in *instance) noteLater(l *lane, notice Notice, e *Event) {
	notice.Lane, notice.Number, notice.ID, notice.Topic, notice.Count = l.number, e.Number, e.ID, e.Topic, 1
	l.unsaved.notices = append(l.unsaved.notices, notice)
	in.urgent = true
}

// delay sets aside an event that is not due: nothing has happened to it, so one notice
// stands for many.
func (in *instance) delay(l *lane, aside Aside) {
	l.unsaved.aside = append(l.unsaved.aside, aside)
	in.urgent = true
	if n := len(l.unsaved.notices); n > 0 && l.unsaved.notices[n-1].Kind == NoticeDelayed {
		l.unsaved.notices[n-1].Count++
		return
	}
	l.unsaved.notices = append(l.unsaved.notices, Notice{Kind: NoticeDelayed, Lane: l.number, Count: 1})
}

func (in *instance) die(l *lane, e *Event, hash string, attempts int, cause error) {
	delete(l.retrying, e.Number)
	if in.Policy == ParkKey && hash != "" {
		l.park(hash)
	}
	in.setAside(l, Aside{Number: e.Number, Lane: l.number, State: Dead, KeyHash: hash, Attempts: attempts, Error: errorText(cause, rowErrorBytes)},
		Notice{Kind: NoticeDead, Attempts: attempts, Err: cause}, e)
}

func (in *instance) putBehind(l *lane, e *Event, hash string) {
	in.setAside(l, Aside{Number: e.Number, Lane: l.number, State: Behind, KeyHash: hash, Attempts: e.Attempts},
		Notice{Kind: NoticeBehind, Attempts: e.Attempts}, e)
}

// fail counts an attempt.
func (in *instance) fail(l *lane, e *Event, hash string, wasDelayed bool, cause error) {
	attempts := e.Attempts + 1
	if attempts >= in.MaxAttempts {
		in.die(l, e, hash, attempts, cause)
		return
	}
	aside := Aside{
		Number: e.Number, Lane: l.number, State: Delayed, KeyHash: hash,
		After: in.backoff(attempts), Attempts: attempts, Error: errorText(cause, rowErrorBytes),
	}
	if hash != "" && (in.Policy == ParkKey || !wasDelayed) {
		aside.State = Retrying
		if in.Policy == ParkKey {
			l.park(hash)
		} else {
			l.block(e.Number)
		}
	}
	in.setAside(l, aside, Notice{Kind: NoticeRetrying, Attempts: attempts, Duration: aside.After, Err: cause}, e)
	in.dueBy(time.Now().Add(aside.After))
}

// complete takes in what became of a call.
func (in *instance) complete(c *call) {
	in.stripes[c.stripe] = nil
	in.inFlight--
	published := 0
	for i := range c.runs {
		r := &c.runs[i]
		l := r.lane
		in.busy[l.number] = false
		if in.lanes[l.number] != l {
			continue // Lost meanwhile; its new owner publishes from what is saved.
		}
		switch {
		case c.failed:
			published += in.completeFailed(c, r)
		case r.due:
			in.duePublished(l, l.dueSent)
			published += r.to - r.from
		default:
			in.pass(l, l.take())
			published += r.to - r.from
		}
		if !l.waiting {
			in.resume(l)
		}
	}
	if c.stalled {
		in.unstall(c.stripe)
	}
	if c.stack != "" {
		in.report.panicked(c.stack)
	}
	if published > 0 {
		in.report.published(published, c.took)
	}
	in.recycle(c)
}

// pass moves a lane's position behind the first n events of its queue. Only now is what
// was skipped forgotten: before, the next owner of the lane would read it again.
func (in *instance) pass(l *lane, n int) {
	l.consume(n, func(e *Event) {
		if aside, ok := l.skipped[e.Number]; ok {
			delete(l.skipped, e.Number)
			in.gone(l, aside, &Notice{Kind: NoticeSkipped}, e)
		}
		in.dropped(e)
	})
}

// take returns how many of the queue were with the publisher, which now are not.
func (l *lane) take() int {
	n := l.sent
	l.sent = 0
	return n
}

// duePublished removes the first n due events, which are acknowledged.
func (in *instance) duePublished(l *lane, n int) {
	for i := range l.due[:n] {
		d := &l.due[i]
		delete(l.retrying, d.Number)
		in.gone(l, d.aside, nil, &d.Event)
	}
	in.dropDue(l, n)
}

// dropDue forgets the first n due events.
func (in *instance) dropDue(l *lane, n int) {
	for i := range l.due[:n] {
		in.dropped(&l.due[i].Event)
	}
	l.dueSent = 0
	if l.due = l.due[n:]; len(l.due) == 0 {
		l.due = nil
		l.look = true // It may have waited for them.
	}
	in.urgent = true
	in.dueBy(time.Now()) // There may be more, or some behind them.
}
