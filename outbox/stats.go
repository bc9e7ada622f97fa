package outbox

import "sync/atomic"

// Stats are the counts of a Relay since it was made.
type Stats struct {
	// Published counts events that a publisher acknowledged, copies as well.
	Published int64
	// Retrying counts failed attempts after which another one follows, Dead
	// events that became dead letters.
	Retrying, Dead int64
	// Behind, Delayed and Skipped count events that were not published when
	// the position reached them.
	Behind, Delayed, Skipped int64
	// Paused counts pauses of lanes, Stuck calls of a publisher that did not
	// return when their context had ended.
	Paused, Stuck int64
	// Taken, Released and Lost count lanes.
	Taken, Released, Lost int64
	// Outages counts calls of the store that failed.
	Outages int64
	// Pruned counts events deleted from the log.
	Pruned int64
	// ReportPanics counts calls of OnNotice and of the Logger that panicked.
	ReportPanics int64
}

// Stats returns the current counts; none of a nil Relay.
func (r *Relay) Stats() Stats {
	if r == nil || r.report == nil {
		return Stats{}
	}
	return r.report.snapshot()
}

type counters struct {
	publishedEvents, retrying, dead, behind, delayed, skipped atomic.Int64

	paused, stuck, taken, released, lost, outages, pruned, reportPanics atomic.Int64
}

func (c *counters) count(kind NoticeKind, n int) {
	var counter *atomic.Int64
	switch kind {
	case NoticePublished:
		counter = &c.publishedEvents
	case NoticeRetrying:
		counter = &c.retrying
	case NoticeDead:
		counter = &c.dead
	case NoticeBehind:
		counter = &c.behind
	case NoticeDelayed:
		counter = &c.delayed
	case NoticeSkipped:
		counter = &c.skipped
	case NoticePaused:
		counter = &c.paused
	case NoticeStuck:
		counter = &c.stuck
	case NoticeTaken:
		counter = &c.taken
	case NoticeReleased:
		counter = &c.released
	case NoticeLost:
		counter = &c.lost
	case NoticeOutage:
		counter = &c.outages
	case NoticePruned:
		counter = &c.pruned
	default: // is the end of something, or no count of interest
		return
	}
	counter.Add(int64(n))
}

func (c *counters) snapshot() Stats {
	return Stats{
		Published: c.publishedEvents.Load(), Retrying: c.retrying.Load(), Dead: c.dead.Load(),
		Behind: c.behind.Load(), Delayed: c.delayed.Load(), Skipped: c.skipped.Load(),
		Paused: c.paused.Load(), Stuck: c.stuck.Load(),
		Taken: c.taken.Load(), Released: c.released.Load(), Lost: c.lost.Load(),
		Outages: c.outages.Load(), Pruned: c.pruned.Load(), ReportPanics: c.reportPanics.Load(),
	}
}
