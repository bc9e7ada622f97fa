package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/onceward/onceward/inbox"
)

// fetched is what one fetch of one partition brought.
type fetched struct {
	messages []inbox.Message
	offsets  []int64 // of messages
	room     *room   // where their bytes lie

	next    int64 // where to read on
	bytes   int   // of records, decompressed
	aborted int   // records left out

	highWater int64 // end of the log
	stable    int64 // end of what is committed or aborted
}

// fetcher reads one partition. It is used by one goroutine at a time.
type fetcher struct {
	transport kafka.RoundTripper
	brokers   net.Addr
	topic     string
	partition int
	isolation Isolation
	messages  *messages
	rooms     *rooms
	maxWait   time.Duration

	limit int // bytes to hold at most
	ask   int // bytes to ask for: less than limit where records are compressed

	batches []batch // of the fetch being decoded, kept for its capacity
}

// errCorrupt is a batch that can't be decoded: a wrong checksum, an unknown
// format or codec.
var errCorrupt = errors.New("a batch can't be decoded")

// fetch reads from offset. It waits up to maxWait for a record; with none it
// returns no messages and next = offset. Errors are kafka.Error where the broker
// answered with one, errCorrupt, or of the network.
func (f *fetcher) fetch(ctx context.Context, offset int64) (fetched, error) {
	a, err := f.request(ctx, offset)
	for err == nil && a.throttle > 0 {
		if !sleep(ctx, a.throttle) {
			return fetched{}, ctx.Err()
		}
		a, err = f.request(ctx, offset)
	}
	if err != nil {
		return fetched{}, err
	}
	switch code := kafka.Error(a.code); code {
	case 0:
	case kafka.InvalidMessage, kafka.UnsupportedCompressionType:
		return fetched{}, fmt.Errorf("%w: %w", errCorrupt, code)
	default:
		return fetched{}, code
	}
	out, err := f.decode(a, offset)
	if err == nil {
		f.adapt(out.bytes)
	}
	return out, err
}

// request asks once. The answer may be that the client is over its quota.
func (f *fetcher) request(ctx context.Context, offset int64) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+f.maxWait)
	defer cancel()

	isolation := kafka.ReadUncommitted
	if f.isolation == ReadCommitted {
		isolation = kafka.ReadCommitted
	}
	response, err := f.transport.RoundTrip(ctx, f.brokers, &exchange{rooms: f.rooms, Request: fetch.Request{
		ReplicaID:      -1,
		MaxWaitTime:    int32(f.maxWait.Milliseconds()),
		MinBytes:       1,
		MaxBytes:       int32(f.ask),
		IsolationLevel: int8(isolation),
		SessionEpoch:   -1, // a fetch session would need one connection for all partitions
		Topics: []fetch.RequestTopic{{
			Topic: f.topic,
			Partitions: []fetch.RequestPartition{{
				Partition:          int32(f.partition),
				CurrentLeaderEpoch: -1,
				FetchOffset:        offset,
				LogStartOffset:     -1,
				PartitionMaxBytes:  int32(f.ask),
			}},
		}},
	}})
	if err != nil {
		return nil, err
	}
	return response.(*answer), nil
}

// decode reads the records of an answer, from the given offset on. What stands
// before a corrupt batch is delivered; the error comes with the next fetch.
func (f *fetcher) decode(a *answer, from int64) (fetched, error) {
	out := fetched{next: from, room: a.room, highWater: a.highWater, stable: a.stable}
	if len(a.records) == 0 {
		return out, nil
	}
	count, err := f.admit(a, from, &out)
	if err == nil && len(f.batches) == 0 && out.next == from {
		err = errors.New("none of the answer's whole batches reaches it")
	}
	f.messages.begin(count, out.next)
	good := from
	for i := range f.batches {
		before := f.messages.count()
		if failed := f.read(&f.batches[i], from, &out); failed != nil {
			f.messages.cut(before)
			err, out.next = failed, good
			break
		}
		good = max(good, f.batches[i].last+1)
	}
	clear(f.batches)
	f.batches = f.batches[:0]
	out.messages, out.offsets = f.messages.end()
	if err != nil && len(out.messages) == 0 && out.next == from {
		return out, fmt.Errorf("%w: %s/%d at offset %d: %w", errCorrupt, f.topic, f.partition, from, err)
	}
	return out, nil
}

// admit splits the answer into batches and keeps those that are to be delivered
// and reach from; it returns how many records they hold at most.
func (f *fetcher) admit(a *answer, from int64, out *fetched) (int, error) {
	count := 0
	aborted := newAbortedTransactions(a.abortedTransactions)
	for log := a.records; len(log) > 0; {
		b, rest, ok, err := nextBatch(log)
		if !ok || err != nil { // nothing is passed over: what is cut off here may reach from
			return count, err
		}
		log = rest
		drop := aborted.batch(b.last, b.producer)
		switch {
		case b.attributes.Control():
			abort, err := b.abort()
			if err != nil {
				return count, fmt.Errorf("control batch: %w", err)
			}
			if abort {
				aborted.end(b.producer)
			}
		case drop && b.attributes.Transactional() && f.isolation == ReadCommitted:
			out.aborted += b.count
		case b.last >= from && (b.count > 0 || b.legacy != nil):
			f.batches = append(f.batches, b)
			count += b.count
		}
		out.next = max(out.next, b.last+1) // not past a control batch that can't be read
	}
	if out.next == from {
		out.next++ // all batches are whole, and none reaches from: don't ask for them for ever
	}
	return count, nil
}

// read makes messages of the records of a batch that are not before from.
func (f *fetcher) read(b *batch, from int64, out *fetched) error {
	if b.legacy != nil {
		records, err := legacyRecords(b.legacy)
		if err != nil {
			return err
		}
		for i := range records {
			b.last = max(b.last, records[i].offset)
			if records[i].offset >= from {
				if err := f.messages.add(&records[i]); err != nil {
					return err
				}
			}
		}
		out.next = max(out.next, b.last+1)
		return nil
	}
	unpacked, err := b.unpack()
	if err != nil {
		return err
	}
	out.bytes += len(unpacked)
	log := cursor{data: unpacked}
	var r record
	for range b.count {
		if err := b.next(&log, &r); err != nil {
			return err
		}
		if r.offset < from { // a broker sends whole batches
			continue
		}
		if err := f.messages.add(&r); err != nil {
			return err
		}
	}
	return nil
}

// adapt chooses how much to ask for next time: compressed records may unpack
// to many times what was asked for.
func (f *fetcher) adapt(got int) {
	switch {
	case got > f.limit:
		f.ask = max(f.ask/2, minFetchBytes)
	case got < f.limit/2:
		f.ask = min(f.ask*2, f.limit)
	}
}
