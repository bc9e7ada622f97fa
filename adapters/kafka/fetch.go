package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/onceward/onceward/inbox"
)

// fetched is what one fetch of one partition brought.
type fetched struct {
	messages []inbox.Message
	offsets  []int64 // of messages

	next    int64 // where to read on
	stuck   bool  // next is a guess: the batches held nothing new
	bytes   int   // of keys and values, decompressed
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
	identity  inbox.Identity
	maxWait   int32 // ms

	limit int // bytes to hold at most
	ask   int // bytes to ask for: less than limit where records are compressed

	// records and batches of the fetch being decoded, kept for their capacity.
	records []protocol.Record
	batches []producerBatch
}

// fetch reads from offset. It waits up to FetchMaxWait for a record; with none
// it returns no messages and next = offset. Errors are kafka.Error where the
// broker answered with one, else of the network, or errCorrupt.
func (f *fetcher) fetch(ctx context.Context, offset int64) (fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+time.Duration(f.maxWait)*time.Millisecond)
	defer cancel()

	isolation := kafka.ReadUncommitted
	if f.isolation == ReadCommitted {
		isolation = kafka.ReadCommitted
	}
	answer, err := f.transport.RoundTrip(ctx, f.brokers, &fetch.Request{
		ReplicaID:      -1,
		MaxWaitTime:    f.maxWait,
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
	})
	if err != nil {
		return fetched{}, classify(err)
	}
	response := answer.(*fetch.Response)
	if response.ErrorCode != 0 {
		return fetched{}, kafka.Error(response.ErrorCode)
	}
	if len(response.Topics) != 1 || len(response.Topics[0].Partitions) != 1 {
		return fetched{}, fmt.Errorf("the broker answered for %d topics instead of one partition", len(response.Topics))
	}
	partition := &response.Topics[0].Partitions[0]
	if partition.ErrorCode != 0 {
		return fetched{}, classify(kafka.Error(partition.ErrorCode))
	}
	batch, err := f.decode(partition, offset)
	if err != nil {
		return fetched{}, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	f.adapt(batch)
	return batch, nil
}

// decode reads the records of a response, from the given offset on.
func (f *fetcher) decode(response *fetch.ResponsePartition, from int64) (fetched, error) {
	out := fetched{next: from, highWater: response.HighWatermark, stable: response.LastStableOffset}
	stream, ok := response.RecordSet.Records.(*protocol.RecordStream)
	if !ok {
		return out, nil // nothing there
	}

	// Of the aborted records only the offsets matter; the others are kept for
	// the second pass, which knows how much to allocate.
	f.records, f.batches = f.records[:0], f.batches[:0]
	defer func() {
		clear(f.records)
		f.records = f.records[:0]
	}()
	aborted := newAbortedTransactions(response.AbortedTransactions)
	for _, reader := range stream.Records {
		keep, err := f.admit(reader, aborted, &out)
		if err == nil {
			err = f.collect(reader, keep, from, &out)
		}
		if err != nil {
			return out, err
		}
	}
	if out.next == from && len(stream.Records) > 0 {
		// A batch that compaction has emptied, wholly or behind from. Its end
		// is not known, so step over it one offset at a time; a fetch that
		// brings a batch behind it makes the rest of the way in one go.
		out.next++
		out.stuck = true
	}

	var err error
	out.messages, err = messages(f.topic, f.partition, f.records, f.batches, f.identity)
	if err != nil {
		return out, err
	}
	out.offsets = make([]int64, len(f.records))
	for i := range f.records {
		out.offsets[i] = f.records[i].Offset
	}
	return out, nil
}

// admit decides whether the records of a batch are delivered.
func (f *fetcher) admit(reader protocol.RecordReader, aborted *abortedTransactions, out *fetched) (bool, error) {
	switch batch := reader.(type) {
	case *protocol.ControlBatch:
		out.next = max(out.next, batch.BaseOffset)
		aborted.batch(batch.BaseOffset, batch.ProducerID)
		for {
			marker, err := batch.ReadControlRecord()
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			if err != nil {
				return false, fmt.Errorf("control batch at offset %d: %w", batch.BaseOffset, err)
			}
			aborted.marker(batch.ProducerID, marker.Type)
			out.next = max(out.next, marker.Offset+1)
		}
	case *protocol.RecordBatch:
		out.next = max(out.next, batch.BaseOffset)
		dropped := aborted.batch(batch.BaseOffset, batch.ProducerID)
		return !dropped || !batch.Attributes.Transactional() || f.isolation == ReadUncommitted, nil
	default: // the formats before Kafka 0.11 know no transactions
		return true, nil
	}
}

// collect reads the records of a batch. Those that are not kept are closed.
func (f *fetcher) collect(reader protocol.RecordReader, keep bool, from int64, out *fetched) error {
	bytes, start := 0, len(f.records)
	for {
		record, err := reader.ReadRecord()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		out.next = max(out.next, record.Offset+1)
		switch {
		case record.Offset < from: // a fetch returns the whole batch
			discard(record)
		case !keep:
			discard(record)
			out.aborted++
		default:
			f.records = append(f.records, *record)
			bytes += size(record.Key) + size(record.Value)
		}
	}
	if len(f.records) > start {
		f.batches = append(f.batches, producerBatch{end: len(f.records), bytes: bytes})
		out.bytes += bytes
	}
	return nil
}

// adapt chooses how much to ask for next time: compressed records may unpack
// to many times what was asked for, and a batch larger than that which holds
// nothing new hides the one behind it.
func (f *fetcher) adapt(batch fetched) {
	switch {
	case batch.stuck:
		f.ask = min(f.ask*2, 1<<30)
	case batch.bytes > f.limit:
		f.ask = max(min(f.ask, f.limit)/2, minFetchBytes)
	case f.ask > f.limit:
		f.ask = f.limit
	case batch.bytes < f.limit/2:
		f.ask = min(f.ask*2, f.limit)
	}
}

// errCorrupt is a batch that can't be decoded: a wrong checksum, an unknown
// format or codec.
var errCorrupt = errors.New("a batch can't be decoded")

// classify marks errors of decoding, for which kafka-go has no type: they are
// what is neither the broker's, nor the network's, nor a route not known yet.
func classify(err error) error {
	var (
		code    kafka.Error
		network net.Error
		route   *fetch.Error
		trust   *tls.CertificateVerificationError
		notTLS  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &code):
		if code == kafka.InvalidMessage || code == kafka.UnsupportedCompressionType {
			return fmt.Errorf("%w: %w", errCorrupt, err)
		}
		return err
	case errors.As(err, &network), errors.As(err, &route), errors.As(err, &trust), errors.As(err, &notTLS), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("%w: %w", errCorrupt, err)
}
