package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/inbox"
)

// progress is when a partition was last seen to move.
type progress struct {
	offset   int64
	since    time.Time
	reported time.Time
}

// watchProgress reports partitions on which records wait and nothing moves.
func watchProgress(ctx context.Context, partitions []*partition, limit time.Duration, events reporter) {
	seen := make([]progress, len(partitions))
	for i := range seen {
		seen[i] = progress{offset: unlocated, since: time.Now()}
	}
	for sleep(ctx, limit/4) {
		now := time.Now()
		for i, p := range partitions {
			offset, _ := p.mark.position()
			log := p.logState()
			if waits := log.highWater > offset || log.err != nil; offset != seen[i].offset || !waits || p.gone.Load() {
				seen[i] = progress{offset: offset, since: now}
				continue
			}
			still := now.Sub(seen[i].since)
			if still < limit || now.Sub(seen[i].reported) < limit {
				continue
			}
			seen[i].reported = now
			events.report(ctx, inbox.Event{
				Kind: EventStalled, Count: int(max(log.highWater-max(offset, 0), 0)), Duration: still,
				Message: at(p.topic, p.id, offset), Err: p.obstacle(offset, log),
			})
		}
	}
}

// obstacle says what the partition waits for.
func (p *partition) obstacle(offset int64, log logState) error {
	switch n := p.mark.unsettled(); {
	case log.err != nil:
		return log.err
	case n > 0:
		return fmt.Errorf("%d messages are with the inbox or wait to be tried again", n)
	case log.stable >= 0 && log.stable <= offset && p.fetcher.isolation == ReadCommitted:
		return fmt.Errorf("a transaction is open since offset %d", log.stable)
	}
	return errors.New("the broker returns nothing")
}
