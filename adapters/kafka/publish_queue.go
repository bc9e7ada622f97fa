package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/onceward/onceward/outbox"
)

// queue holds the events of one call for one partition. They go out in order,
// batch after batch, each once the one before is acknowledged.
type queue struct {
	layout    *layout
	partition int
	events    []int32 // by their place in the call
	estimate  int     // of their bytes, without headers
	next      int     // those before it have their results

	// blocked are the keys of which an event has failed.
	blocked map[string]struct{}

	// What a batch may hold at most. A batch that the broker refuses as a whole
	// halves one of them; a batch that is always the head of the queue keeps the order.
	bytes, count int

	sent     []int32 // the batch under way
	sentSize int     // before compression
	end      int     // of the batch under way, in events
}

func newQueue(l *layout, partition, maxBytes int) *queue {
	return &queue{layout: l, partition: partition, bytes: l.batchBytes(maxBytes), count: math.MaxInt}
}

func (q *queue) pending() bool { return q.next < len(q.events) }

// fill adds the next batch to a request. Nothing is added if nothing is left,
// or if the request is full enough.
func (q *queue) fill(c *call, r *produceRequest) (added bool, err error) {
	q.sent = q.sent[:0]
	batch := recordBatch{latest: time.Now().UnixMilli()}
	batchAt, at := 0, q.next
	for ; at < len(q.events) && len(q.sent) < q.count; at++ {
		i := q.events[at]
		e := &c.events[i]
		if c.results[i] != nil {
			continue // refused before
		}
		if q.holds(e) {
			c.results[i] = outbox.ErrBehind
			continue
		}
		size := batch.next(e)
		if size > maxRecordBytes {
			q.refuse(c, i, fmt.Errorf("kafka: %s: a record of %d bytes, which no request can hold: %w", q, size, outbox.ErrPermanent))
			continue
		}
		if len(q.sent) == 0 {
			if r.topics > 0 && len(r.bytes)+size > requestBytes {
				return false, nil
			}
			batchAt = r.begin(q)
		} else if n := len(r.bytes) + varintSize(int64(size)) + size; n-batchAt > q.bytes || n > requestBytes {
			break
		}
		r.bytes = batch.add(r.bytes, e, size)
		q.sent = append(q.sent, i)
	}
	q.end = at
	if len(q.sent) == 0 {
		q.next = at
		return false, nil
	}
	q.sentSize = len(r.bytes) - batchAt
	return true, r.end(batchAt, &batch, c.publisher.config.Compression)
}

// settle takes the broker's answer to the batch under way.
func (q *queue) settle(c *call, a *produce.ResponsePartition) {
	code := kafka.Error(a.ErrorCode)
	switch code {
	case 0:
		q.next = q.end
		if q.count < math.MaxInt/2 {
			q.count *= 2 // what had to be found was found, or is further on
		}
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		if len(q.sent) > 1 {
			q.bytes = q.sentSize / 2
			if q.layout.refused(q.sentSize) {
				c.publisher.cluster.log.Warn("kafka: the topic takes only smaller batches: lower MaxBatchBytes, or raise its max.message.bytes",
					slog.String("topic", q.layout.topic), slog.Int("refused_bytes", q.sentSize))
			}
			return
		}
		q.refuse(c, q.sent[0], fmt.Errorf("kafka: %s: the event makes a batch of %d bytes, more than the topic takes: raise its max.message.bytes: %w: %w",
			q, q.sentSize, outbox.ErrPermanent, code))
	case kafka.InvalidRecord, kafka.InvalidMessage, kafka.InvalidTimestamp:
		if !q.refuseNamed(c, code, a.RecordErrors) {
			q.count = max(len(q.sent)/2, 1)
		}
	default:
		q.fail(c, refusal(q, code, a.ErrorMessage))
	}
}

// refuseNamed gives their results to the records that the broker names as the
// reason why it refused the batch, or to the only one. False: nobody knows.
func (q *queue) refuseNamed(c *call, code kafka.Error, named []produce.ResponseError) bool {
	if len(q.sent) == 1 {
		reason := ""
		if len(named) > 0 {
			reason = named[0].BatchIndexErrorMessage
		}
		q.refuse(c, q.sent[0], refusal(q, code, reason))
		return true
	}
	found := false
	for _, record := range named {
		if i := int(record.BatchIndex); i >= 0 && i < len(q.sent) && c.results[q.sent[i]] == nil {
			q.refuse(c, q.sent[i], refusal(q, code, record.BatchIndexErrorMessage))
			found = true
		}
	}
	return found
}

// refuse gives one event its result.
func (q *queue) refuse(c *call, i int32, err error) {
	if e := &c.events[i]; q.holds(e) {
		err = outbox.ErrBehind
	} else if e.Key != nil {
		if q.blocked == nil {
			q.blocked = make(map[string]struct{})
		}
		q.blocked[string(e.Key)] = struct{}{}
	}
	c.results[i] = err
}

// fail gives their result to all events that have none.
func (q *queue) fail(c *call, err error) {
	for ; q.next < len(q.events); q.next++ {
		if i := q.events[q.next]; c.results[i] == nil {
			q.refuse(c, i, err)
		}
	}
	if errors.Is(err, outbox.ErrUnavailable) {
		q.layout.stale.Store(true)
	}
}

// holds reports whether an earlier event of the same key has failed.
func (q *queue) holds(e *outbox.Event) bool {
	if len(q.blocked) == 0 || e.Key == nil {
		return false
	}
	_, found := q.blocked[string(e.Key)]
	return found
}

// String names the partition in errors.
func (q *queue) String() string {
	return fmt.Sprintf("topic %q, partition %d", q.layout.topic, q.partition)
}
