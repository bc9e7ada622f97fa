package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lap times a consumer from its first message until target messages are done.
// Joining the group comes before and leaving it after: those are waits on the
// broker's timers, the same for all sides.
type lap struct {
	target int64
	done   atomic.Int64

	begin   sync.Once
	started time.Time
	elapsed time.Duration // valid once ended has ended

	// ended ends when target messages are done.
	ended context.Context //nolint:containedctx // it is the lap's own
	end   context.CancelFunc
}

func newLap(target int) *lap {
	l := &lap{target: int64(target)}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// start is called before the first message is handled; later calls do nothing.
func (l *lap) start() {
	l.begin.Do(func() { l.started = time.Now() })
}

// add counts messages that are done, effects committed.
func (l *lap) add(n int) {
	now := l.done.Add(int64(n))
	if before := now - int64(n); before < l.target && now >= l.target {
		l.elapsed = time.Since(l.started)
		l.end()
	}
}
