package kafka

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// backoff is a growing wait with jitter, so that consumers that lost the same
// broker don't come back at once. The zero value starts anew.
type backoff struct {
	failures int
}

// next counts a failure and returns how long to wait: between half and all of
// 50 ms, 100 ms, … 2 s.
func (b *backoff) next() time.Duration {
	d := lastBackoff
	if b.failures < 6 {
		d = min(firstBackoff<<b.failures, lastBackoff)
	}
	b.failures++
	return d/2 + rand.N(d/2)
}

// wait counts a failure and waits. It returns false if ctx has ended.
func (b *backoff) wait(ctx context.Context) bool { return sleep(ctx, b.next()) }

func (b *backoff) reset() { b.failures = 0 }

// sleep waits, and returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
