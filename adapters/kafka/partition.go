package kafka

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

// partition reads one assigned partition for as long as its generation lives:
// a fetcher, one fetch ahead, and the lanes it feeds.
type partition struct {
	topic     string
	id        int
	assigned  int64 // committed offset that the group reported; negative: none
	processor inbox.Processor
	events    reporter
	fetcher   *fetcher
	offsets   *offsets
	commits   *committer

	lanes   []*lane
	mark    *watermark
	handled atomic.Int64
	// gone is set when the topic was deleted. Should it be made again, it counts
	// from the start: these offsets must not be read from or committed then.
	gone atomic.Bool

	mu  sync.Mutex
	log logState
}

// logState is what the last answer of the broker said about the partition.
type logState struct {
	highWater, stable int64
	err               error // why the last attempt failed; nil if it did not
}

func (p *partition) setLog(update func(*logState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	update(&p.log)
}

func (p *partition) logState() logState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log
}

// run works until reading ends and all lanes have returned.
func (p *partition) run(reading, handling context.Context, abandoned *atomic.Int64) {
	var working sync.WaitGroup
	for _, l := range p.lanes {
		abandoned.Add(1)
		working.Go(func() {
			defer abandoned.Add(-1)
			l.run(reading, handling)
		})
	}
	p.read(reading)
	working.Wait()
}

// read fetches and hands out until ctx ends.
func (p *partition) read(ctx context.Context) {
	offset, ok := p.locate(ctx)
	if !ok {
		return
	}
	retry := retrying{partition: p}
	for ctx.Err() == nil {
		if p.gone.Load() {
			<-ctx.Done()
			return
		}
		batch, err := p.fetcher.fetch(ctx, offset)
		switch {
		case err == nil:
			retry.succeeded(ctx, offset)
			p.setLog(func(l *logState) { l.highWater, l.stable = batch.highWater, batch.stable })
			if batch.aborted > 0 {
				p.events.report(ctx, inbox.Event{Kind: EventAborted, Count: batch.aborted, Message: at(p.topic, p.id, offset)})
			}
			if !p.hand(ctx, batch) {
				return
			}
			offset = batch.next
		case errors.Is(err, kafka.OffsetOutOfRange):
			offset = p.relocate(ctx, offset, &retry)
		default:
			if !retry.failed(ctx, offset, err) {
				return
			}
		}
	}
}

// hand gives the messages to their lanes and waits until those have room. It
// returns false if ctx has ended.
func (p *partition) hand(ctx context.Context, batch fetched) bool {
	pieces, offsets := p.split(batch)
	p.mark.hand(offsets, batch.next)
	if len(batch.messages) == 0 {
		p.commits.notify() // perhaps an aborted or compacted stretch: nothing to settle
	}
	batch.room.hold(len(pieces))
	for i, messages := range pieces {
		if len(messages) == 0 {
			batch.room.settled()
			continue
		}
		select {
		case p.lanes[i].pieces <- piece{messages, batch.room}:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (p *partition) split(batch fetched) ([][]inbox.Message, [][]int64) {
	n := len(p.lanes)
	if n == 1 {
		return [][]inbox.Message{batch.messages}, [][]int64{batch.offsets}
	}
	pieces, offsets := make([][]inbox.Message, n), make([][]int64, n)
	for i, m := range batch.messages {
		lane := laneOf(m.Key, batch.offsets[i], n)
		pieces[lane] = append(pieces[lane], m)
		offsets[lane] = append(offsets[lane], batch.offsets[i])
	}
	return pieces, offsets
}

func (p *partition) settle(lane, n int) {
	if n == 0 {
		return
	}
	p.mark.settle(lane, n)
	p.handled.Add(int64(n))
	p.commits.notify()
}

// retrying reports the first of a row of failures and the end of the row.
type retrying struct {
	partition *partition
	wait      backoff
	corrupt   bool // said in this row
	beyond    int  // looks at a log that ends before our offset
}

func (r *retrying) failed(ctx context.Context, offset int64, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	p := r.partition
	p.setLog(func(l *logState) { l.err = err })
	// A corrupt batch is said even if the row began with another failure: that
	// one heals by itself, this one does not.
	kind, say := EventRetry, r.wait.failures == 0
	if errors.Is(err, errCorrupt) {
		kind, say = EventCorrupt, !r.corrupt
		r.corrupt = true
	}
	if say {
		p.events.report(ctx, inbox.Event{Kind: kind, Count: 1, Err: err, Message: at(p.topic, p.id, offset)})
	}
	return r.wait.wait(ctx)
}

func (r *retrying) succeeded(ctx context.Context, offset int64) {
	r.corrupt, r.beyond = false, 0
	if r.wait.failures == 0 {
		return
	}
	p := r.partition
	p.setLog(func(l *logState) { l.err = nil })
	p.events.report(ctx, inbox.Event{Kind: EventRecovered, Count: r.wait.failures, Message: at(p.topic, p.id, offset)})
	r.wait.reset()
}
