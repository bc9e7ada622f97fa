package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

// offsets asks the brokers where a partition begins and ends, and where the
// group left it.
type offsets struct {
	client  *kafka.Client
	group   string
	startAt StartAt

	mu sync.Mutex
	// existing is how many partitions each topic had when Consume started, or 0
	// since the topic went away. A partition beyond that is new, so StartLast
	// must not skip what was written to it before we saw it.
	existing map[string]int
	// missing are topics that have gone and are not back.
	missing map[string]bool
}

func (o *offsets) isNew(topic string, partition int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return partition >= o.existing[topic]
}

// lose and find note that a topic has gone or is back, and return whether that
// is news.
func (o *offsets) lose(topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.missing[topic] {
		return false
	}
	o.missing[topic], o.existing[topic] = true, 0
	return true
}

func (o *offsets) find(topic string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.missing[topic]
	delete(o.missing, topic)
	return was
}

// committed returns the offset the group has committed, or a negative number.
// kafka-go's group reports "none" for an error too, and a group that believes
// it starts over would skip or repeat everything.
func (o *offsets) committed(ctx context.Context, topic string, partition int) (int64, error) {
	response, err := o.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: o.group, Topics: map[string][]int{topic: {partition}},
	})
	if err != nil {
		return 0, err
	}
	if response.Error != nil {
		return 0, response.Error
	}
	for _, p := range response.Topics[topic] {
		if p.Partition == partition {
			return p.CommittedOffset, p.Error
		}
	}
	return 0, fmt.Errorf("the coordinator named no committed offset for %s/%d", topic, partition)
}

// bounds returns the first offset of a partition and the one behind its last.
func (o *offsets) bounds(ctx context.Context, topic string, partition int, isolation Isolation) (first, last int64, err error) {
	level := kafka.ReadUncommitted
	if isolation == ReadCommitted {
		level = kafka.ReadCommitted
	}
	response, err := o.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics:         map[string][]kafka.OffsetRequest{topic: {kafka.FirstOffsetOf(partition), kafka.LastOffsetOf(partition)}},
		IsolationLevel: level,
	})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range response.Topics[topic] {
		if p.Partition == partition {
			if p.Error == nil && (p.FirstOffset < 0 || p.LastOffset < 0) {
				return 0, 0, errors.New("the broker named no offsets")
			}
			return p.FirstOffset, p.LastOffset, p.Error
		}
	}
	return 0, 0, fmt.Errorf("the broker named no offsets for %s/%d", topic, partition)
}

// locate finds where to start reading and makes the watermark begin there. It
// returns false if ctx ended first.
func (p *partition) locate(ctx context.Context) (int64, bool) {
	retry := retrying{partition: p}
	for {
		offset, err := p.start(ctx)
		if err == nil {
			retry.succeeded(ctx, offset)
			return offset, ctx.Err() == nil
		}
		if !retry.failed(ctx, max(p.assigned, 0), err) {
			return 0, false
		}
	}
}

func (p *partition) start(ctx context.Context) (int64, error) {
	offset := p.assigned
	if offset < 0 {
		var err error
		if offset, err = p.offsets.committed(ctx, p.topic, p.id); err != nil {
			return 0, err
		}
	}
	if offset >= 0 {
		p.mark.hand(nil, offset)
		p.commits.known(p)
		return offset, nil
	}
	first, last, err := p.offsets.bounds(ctx, p.topic, p.id, p.fetcher.isolation)
	if err != nil {
		return 0, err
	}
	if p.offsets.startAt == StartFirst || p.offsets.isNew(p.topic, p.id) {
		p.mark.hand(nil, first)
		return first, nil
	}
	// "The last" is another place after every restart, so it is pinned before
	// anything is read. Without that, a process that dies before its first
	// commit would skip what came while it was away.
	p.mark.hand(nil, last)
	if err := p.commits.pin(p); err != nil {
		return 0, fmt.Errorf("committing the offset to start at: %w", err)
	}
	return last, nil
}

// looksBeyond is how often an offset beyond the log's end is looked at before it
// is believed.
const looksBeyond = 2

// relocate finds out where to go on after the broker said that offset is not
// in its log. Both ways are reported: neither is harmless.
func (p *partition) relocate(ctx context.Context, offset int64, retry *retrying) int64 {
	first, last, err := p.offsets.bounds(ctx, p.topic, p.id, ReadUncommitted)
	// Where to go on behind the log's end. What the log holds now may never have
	// been handled, and what was is recognised: so everything is read again,
	// but for a group that asked not to read what came before it.
	back := first
	if p.offsets.startAt == StartLast {
		back = last
	}
	switch {
	case err != nil:
		retry.failed(ctx, offset, err)
		return offset
	case offset < first:
		p.events.report(ctx, inbox.Event{
			Kind: EventDataLoss, Count: int(first - offset), Message: at(p.topic, p.id, offset),
			Err: fmt.Errorf("the log starts at %d: retention or a deletion was faster than this group", first),
		})
		p.mark.reset(first)
		p.commits.notify()
		return first
	case offset > last:
		// A new leader may lag behind for a moment, and what is pending must be
		// settled first.
		retry.beyond++
		rewound := false
		if retry.beyond > looksBeyond {
			rewound = p.mark.rewind(back)
		}
		if !rewound {
			retry.failed(ctx, offset, kafka.OffsetOutOfRange)
			return offset
		}
		p.events.report(ctx, inbox.Event{
			Kind: EventOffsetReset, Count: int(offset - last), Message: at(p.topic, p.id, offset),
			Err: fmt.Errorf("the log ends at %d: it was truncated, or the topic was made again; reading goes on at %d", last, back),
		})
		p.commits.notify()
		return back
	default: // the log has it by now
		retry.failed(ctx, offset, kafka.OffsetOutOfRange)
		return offset
	}
}
