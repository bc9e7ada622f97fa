package kafka

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

const (
	// commitInterval is the shortest time between two commits. Each one covers
	// all partitions.
	commitInterval = 200 * time.Millisecond
	// finalCommitTimeout bounds the commits at the end of a generation.
	finalCommitTimeout = 5 * time.Second
)

// committer commits the watermarks of one generation's partitions, with that
// generation, one request at a time. Several committers would be slower, and
// the broker would take their offsets in any order.
//
// A failed commit is nobody's error: the messages are settled in the database,
// so the worst is a duplicate.
type committer struct {
	generation *kafka.Generation
	partitions []*partition
	interval   time.Duration // of keeping the session while draining
	events     reporter

	wake chan struct{} // holds one: some watermark may have moved
	over chan struct{} // closed when this generation commits nothing any more

	mu      sync.Mutex // one request at a time
	last    map[*partition]commitPoint
	refusal error // why over is closed
}

// commitPoint is a committed watermark.
type commitPoint struct {
	offset int64
	resets int
}

func (c *committer) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// known records that the group already has the partition's position.
func (c *committer) known(p *partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset, resets := p.mark.position()
	c.last[p] = commitPoint{offset, resets}
}

// pin commits the partition's position now.
func (c *committer) pin(p *partition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset, resets := p.mark.position()
	return c.send(map[*partition]commitPoint{p: {offset, resets}})
}

// run commits until ctx ends. When lease has ended, the library's heartbeats
// have too, and commits keep the session; lost is called when that fails.
func (c *committer) run(ctx, lease context.Context, lost func(error)) {
	beat := time.NewTicker(c.interval)
	defer beat.Stop()
	var retry backoff
	ended := lease.Done()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-ended:
			ended = nil
			err = c.keepSession()
		case <-beat.C:
			if ended != nil {
				continue
			}
			err = c.keepSession()
		case <-c.wake:
			if err = c.commit(); err == nil {
				retry.reset()
			} else if !dead(err) {
				c.notify()
				if !retry.wait(ctx) {
					return
				}
			}
		}
		if err != nil && (ended == nil || evicted(err)) {
			lost(err)
		}
		if !sleep(ctx, commitInterval) {
			return
		}
	}
}

// commit sends the watermarks that have moved.
func (c *committer) commit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := make(map[*partition]commitPoint)
	for _, p := range c.partitions {
		offset, resets := p.mark.position()
		last, ok := c.last[p]
		if offset == unlocated || ok && resets == last.resets && offset <= last.offset || p.gone.Load() {
			continue
		}
		moved[p] = commitPoint{offset, resets}
	}
	return c.send(moved)
}

// keepSession commits what has moved, or else one position again.
func (c *committer) keepSession() error {
	c.mu.Lock()
	again := make(map[*partition]commitPoint)
	for p, point := range c.last {
		if !p.gone.Load() {
			again[p] = point
			break
		}
	}
	err := c.send(again)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.commit()
}

// finish commits until everything is committed, the generation refuses, or the
// time is over.
func (c *committer) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), finalCommitTimeout)
	defer cancel()
	var retry backoff
	for {
		if err := c.commit(); err == nil || dead(err) || !retry.wait(ctx) {
			return
		}
	}
}

// send commits with this generation, and reports a failure. After the one that
// ends the generation nothing is sent or reported again. c.mu is held.
func (c *committer) send(points map[*partition]commitPoint) error {
	if len(points) == 0 || c.refusal != nil {
		return c.refusal
	}
	request := make(map[string]map[int]int64)
	for p, point := range points {
		if request[p.topic] == nil {
			request[p.topic] = make(map[int]int64)
		}
		request[p.topic][p.id] = point.offset
	}
	err := c.generation.CommitOffsets(request)
	switch {
	case err == nil:
		maps.Copy(c.last, points)
		return nil
	case dead(err):
		c.refusal = err
		close(c.over)
		c.events.report(context.Background(), inbox.Event{Kind: EventCommitDropped, Count: len(points), Err: err})
	default:
		c.events.report(context.Background(), inbox.Event{Kind: EventCommitFailed, Count: len(points), Err: err})
	}
	return err
}

// dead reports errors after which this generation commits nothing any more. The
// offsets must not be carried into the next one: the partition may be someone
// else's, and a lower offset would rewind it.
func dead(err error) bool {
	return evicted(err) || errors.Is(err, kafka.RebalanceInProgress) || errors.Is(err, net.ErrClosed)
}

// evicted reports that the broker has given our partitions to others.
func evicted(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId)
}
