package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lap times a consumer from its first message until target messages are done or
// limit has passed. Joining the group comes before and leaving it after: those
// are waits on the broker's timers, the same for all sides.
type lap struct {
	target int
	limit  time.Duration
	done   atomic.Int64

	// ended ends with the lap.
	ended context.Context //nolint:containedctx // it is the lap's own
	end   context.CancelFunc

	begin, finish sync.Once
	started       time.Time

	// Valid once the lap has ended.
	messages int
	elapsed  time.Duration
}

func newLap(target int, limit time.Duration) *lap {
	l := &lap{target: target, limit: limit}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// start is called before the first message is handled; later calls do nothing.
func (l *lap) start() {
	l.begin.Do(func() {
		l.started = time.Now()
		time.AfterFunc(l.limit, l.stop)
	})
}

// add counts messages that are done, effects committed.
func (l *lap) add(n int) {
	if l.done.Add(int64(n)) >= int64(l.target) {
		l.stop()
	}
}

func (l *lap) stop() {
	l.finish.Do(func() {
		l.elapsed = time.Since(l.started)
		l.messages = int(l.done.Load())
		l.end()
	})
}
