package inbox

import (
	"slices"
	"sync/atomic"
)

// Stats are the counts of an Inbox since it was made.
type Stats struct {
	// Processed, Duplicates and Failed count messages by outcome; Failed also
	// redrives that failed again, and batches whose transaction a handler ended.
	Processed, Duplicates, Failed int64
	// Parked counts messages set aside, by reason.
	Parked map[Reason]int64
	// Retries counts transactions run again at once: after a conflict, and
	// when a failed batch is run one by one.
	Retries int64
	// Outages counts calls that ended because the store was unavailable or a
	// commit's outcome unknown.
	Outages int64
	// Abandoned counts handlers that did not return after their context had
	// been cancelled.
	Abandoned int64
	// Redriven and Discarded count dead letters.
	Redriven, Discarded int64
	// Pruned counts expired records and attempt counts deleted.
	Pruned int64
	// ReportPanics counts calls of OnEvent and of the Logger that panicked.
	ReportPanics int64
}

// Stats returns the current counts; none of a nil Inbox.
func (in *Inbox[Tx]) Stats() Stats {
	if in == nil {
		return Stats{}
	}
	return in.counters.snapshot()
}

var reasons = [...]Reason{ReasonAttempts, ReasonPermanent, ReasonMissingID, ReasonTooOld, ReasonIDReused, ReasonBehind, ReasonUnfinished}

type counters struct {
	processed, duplicates, failed, retries, outages, abandoned, redriven, discarded, pruned, reportPanics atomic.Int64

	parked [len(reasons)]atomic.Int64
}

func (c *counters) count(kind EventKind, reason Reason, n int64) {
	switch kind {
	case EventProcessed:
		c.processed.Add(n)
	case EventDuplicate:
		c.duplicates.Add(n)
	case EventFailed:
		c.failed.Add(n)
	case EventParked:
		c.parked[slices.Index(reasons[:], reason)].Add(n)
	case EventOutage:
		c.outages.Add(n)
	case EventAbandoned:
		c.abandoned.Add(n)
	case EventRedriven:
		c.redriven.Add(n)
	case EventDiscarded:
		c.discarded.Add(n)
	case EventRecovered: // its calls are counted as outages
	case EventPruned:
		c.pruned.Add(n)
	}
}

func (c *counters) snapshot() Stats {
	s := Stats{
		Processed:  c.processed.Load(),
		Duplicates: c.duplicates.Load(),
		Failed:     c.failed.Load(),
		Parked:     make(map[Reason]int64, len(reasons)),
		Retries:    c.retries.Load(),
		Outages:    c.outages.Load(),
		Abandoned:  c.abandoned.Load(),
		Redriven:   c.redriven.Load(),
		Discarded:  c.discarded.Load(),
		Pruned:     c.pruned.Load(),

		ReportPanics: c.reportPanics.Load(),
	}
	for i, reason := range reasons {
		if n := c.parked[i].Load(); n > 0 {
			s.Parked[reason] = n
		}
	}
	return s
}
