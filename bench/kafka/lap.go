package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// leadLimit ends a lap whose consumer never gets under way.
const leadLimit = 30 * time.Second

// lap times a consumer at work: from the moment when it has done its lead until
// target messages are done or limit has passed. Before it come joining the group,
// dialling and the first fetches, which one side has done when it sees its first
// message and the other has not; after it comes leaving.
type lap struct {
	lead, target int
	limit        time.Duration
	done         atomic.Int64

	// ended ends with the lap; its cause is why the lap failed.
	ended context.Context //nolint:containedctx // it is the lap's own
	end   context.CancelCauseFunc

	mu        sync.Mutex
	started   time.Time
	first     int64 // done when it started
	stopAfter *time.Timer

	// Valid once the lap has ended.
	messages int // done within it
	elapsed  time.Duration
}

// errLapOver is the end of a lap that went well.
var errLapOver = errors.New("the lap is over")

func newLap(lead, target int, limit time.Duration) *lap {
	l := &lap{lead: lead, target: target, limit: limit}
	l.ended, l.end = context.WithCancelCause(context.Background())
	l.stopAfter = time.AfterFunc(leadLimit, func() {
		l.fail(fmt.Errorf("%d messages were done after %v, want %d before the clock starts", l.done.Load(), leadLimit, lead))
	})
	return l
}

// add counts messages that are done, effects committed.
func (l *lap) add(n int) {
	done := l.done.Add(int64(n))
	if done < int64(l.lead) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over():
	case l.started.IsZero():
		l.stopAfter.Stop()
		l.started, l.first = time.Now(), done
		l.stopAfter = time.AfterFunc(l.limit, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.stop()
		})
	case done >= int64(l.target):
		l.stop()
	}
}

// stop ends the lap well. l.mu is held.
func (l *lap) stop() {
	if l.over() {
		return
	}
	l.elapsed = time.Since(l.started)
	l.messages = int(l.done.Load() - l.first)
	l.stopAfter.Stop()
	l.end(errLapOver)
}

// fail ends the lap: a side that had to do something twice is not compared with
// one that did not. Once the lap has ended it does nothing.
func (l *lap) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopAfter.Stop()
	l.end(err)
}

func (l *lap) over() bool { return l.ended.Err() != nil }

// result is nil for a lap that ended well.
func (l *lap) result() error {
	switch err := context.Cause(l.ended); {
	case err == nil:
		return errors.New("it ended before its work was done")
	case !errors.Is(err, errLapOver):
		return err
	}
	return nil
}
