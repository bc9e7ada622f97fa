package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

// abandonAfter is how long a handler may ignore its cancelled context.
const abandonAfter = 5 * time.Second

// Causes of a handler's cancelled context, for context.Cause.
var (
	errLeaseLost = errors.New("kafka: the partition was given to another member; this message is delivered again")
	errDrained   = errors.New("kafka: DrainTimeout is over; this message is delivered again")
)

// generation is what this member does between two rebalances.
type generation struct {
	*consumer
	member     *kafka.Generation
	partitions []*partition
	commits    *committer

	// cancelled receives one cause for cancelling the handlers early.
	cancelled chan error
	// changed is closed when the group must rebalance for new partitions.
	changed chan struct{}
	// done is closed when everything is drained and committed.
	done chan struct{}
	// abandoned counts lanes; those that are left at the end never returned.
	abandoned atomic.Int64
}

func (c *consumer) newGeneration(member *kafka.Generation) *generation {
	g := &generation{
		consumer: c, member: member,
		cancelled: make(chan error, 1), changed: make(chan struct{}), done: make(chan struct{}),
	}
	g.commits = &committer{
		generation: member, interval: c.config.HeartbeatInterval, events: c.events,
		wake: make(chan struct{}, 1), over: make(chan struct{}), last: make(map[*partition]commitPoint),
	}
	count := 0
	for _, assigned := range member.Assignments {
		count += len(assigned)
	}
	// A partition holds one fetch in its lanes, one before them, and with
	// several lanes one in their room.
	held := (2 + c.config.laneRoom()) * count
	limit := min(c.config.FetchMaxBytes, max(c.config.BufferBytes/max(held, 1), minFetchBytes))
	free := new(rooms)
	for topic, assigned := range member.Assignments {
		for _, a := range assigned {
			g.partitions = append(g.partitions, g.newPartition(topic, a, limit, free))
		}
	}
	g.commits.partitions = g.partitions
	return g
}

func (g *generation) newPartition(topic string, a kafka.PartitionAssignment, limit int, free *rooms) *partition {
	c := g.config
	p := &partition{
		topic: topic, id: a.ID, assigned: a.Offset,
		processor: g.processor, events: g.events, offsets: g.offsets, commits: g.commits,
		mark: newWatermark(c.KeyParallelism),
		fetcher: &fetcher{
			transport: g.client.Transport, brokers: g.client.Addr, topic: topic, partition: a.ID,
			isolation: c.Isolation, messages: newMessages(topic, a.ID, c.Identity), maxWait: c.FetchMaxWait,
			rooms: free, limit: limit, ask: limit,
		},
	}
	for i := range c.KeyParallelism {
		p.lanes = append(p.lanes, &lane{partition: p, number: i, pieces: make(chan piece, c.laneRoom()), call: firstCall})
	}
	return p
}

// run reads until lease (the generation) or stop (Consume) ends, then drains
// and commits. When it was stop, it waits for the end of the lease before it
// returns, so that the group is left instead of joined again.
func (g *generation) run(stop, lease context.Context) {
	g.events.report(stop, inbox.Event{Kind: EventJoined, Count: len(g.partitions)})

	// Handlers keep the values of the caller's context, but not its end: that
	// is where the drain begins.
	reading, stopReading := context.WithCancel(context.WithoutCancel(stop))
	handling, cancelHandling := context.WithCancelCause(context.WithoutCancel(stop))
	defer cancelHandling(nil)

	var readers, watchers sync.WaitGroup
	for _, p := range g.partitions {
		readers.Go(func() { p.run(reading, handling, &g.abandoned) })
	}
	watchers.Go(func() { g.watchPartitions(reading) })
	watchers.Go(func() { watchProgress(reading, g.partitions, g.config.StalledAfter, g.events) })
	committing, stopCommitting := context.WithCancel(context.Background())
	watchers.Go(func() { g.commits.run(committing, lease, g.lost) })

	select {
	case <-lease.Done():
	case <-stop.Done():
	case <-g.changed:
	case <-g.commits.over: // before the heartbeats say so
	}
	stopReading()
	idle := make(chan struct{})
	go func() {
		readers.Wait()
		close(idle)
	}()
	g.drain(stop, idle, cancelHandling)

	stopCommitting()
	watchers.Wait()
	g.commits.finish()
	handled := int64(0)
	for _, p := range g.partitions {
		handled += p.handled.Load()
	}
	g.events.report(stop, inbox.Event{Kind: EventDrained, Count: int(handled)})
	close(g.done)
	if stop.Err() != nil {
		<-lease.Done()
	}
}

// drain waits until the lanes are idle: for DrainTimeout, or less if the
// session is lost before; then it cancels the handlers, and after abandonAfter
// it gives up on them.
func (g *generation) drain(ctx context.Context, idle <-chan struct{}, cancel context.CancelCauseFunc) {
	end := time.Now().Add(g.config.DrainTimeout)
	limit := time.NewTimer(g.config.DrainTimeout)
	defer limit.Stop()
	var cause error
	for cause == nil {
		select {
		case <-idle:
			return
		case <-limit.C:
			cause = errDrained
		case err := <-g.cancelled:
			if evicted(err) {
				cause = errLeaseLost
			} else {
				// The coordinator can't be reached. It gives the partitions
				// away a SessionTimeout after it last heard from us. That is
				// told again and again, and may only bring the end nearer.
				sooner := time.Now().Add(min(g.config.SessionTimeout, g.config.DrainTimeout) / 2)
				if sooner.Before(end) {
					end = sooner
					limit.Reset(time.Until(end))
				}
			}
		}
	}
	unsettled := 0
	for _, p := range g.partitions {
		unsettled += p.mark.unsettled()
	}
	g.events.report(ctx, inbox.Event{Kind: EventHandlersCancelled, Count: unsettled, Err: cause})
	cancel(cause)
	if !waitAtMost(idle, abandonAfter) {
		g.events.report(ctx, inbox.Event{
			Kind: EventAbandoned, Count: int(g.abandoned.Load()),
			Err: fmt.Errorf("%d calls of the inbox did not return %v after their context had ended", g.abandoned.Load(), abandonAfter),
		})
	}
}

// lost is told by the committer that the session can't be kept.
func (g *generation) lost(err error) {
	select {
	case g.cancelled <- err:
	default:
	}
}
