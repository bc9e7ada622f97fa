package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/onceward/onceward/outbox"
)

// recordBatch is what is known of a batch while its records are written. The
// format is version 2, of Kafka 0.11 and later. It is written here, because kafka-go's
// encoder takes an interface, two allocations and a dozen small writes for each
// record, and copies payloads twice (BenchmarkEncode).
type recordBatch struct {
	count     int
	firstTime int64 // ms since 1970, of the first record
	lastTime  int64 // the largest
	latest    int64 // that a record may have
}

// next returns the size of an event as the next record, without its length.
func (r *recordBatch) next(e *outbox.Event) int {
	size := 1 + // attributes
		varintSize(r.millis(e)-r.firstTimeOr(e)) + varintSize(int64(r.count)) +
		nullableSize(e.Key) + nullableSize(e.Payload) + varintSize(int64(len(e.Headers)+1)) +
		stringSize(outbox.HeaderID) + stringSize(e.ID)
	for i := range e.Headers {
		size += stringSize(e.Headers[i].Name) + nullableSize(e.Headers[i].Value)
	}
	return size
}

// add writes an event as the next record. Size is what next returned.
func (r *recordBatch) add(b []byte, e *outbox.Event, size int) []byte {
	ms := r.millis(e)
	if r.count == 0 {
		r.firstTime, r.lastTime = ms, ms
	}
	r.lastTime = max(r.lastTime, ms)

	b = binary.AppendVarint(b, int64(size))
	b = append(b, 0) // attributes
	b = binary.AppendVarint(b, ms-r.firstTime)
	b = binary.AppendVarint(b, int64(r.count))
	b = appendNullable(b, e.Key)
	b = appendNullable(b, e.Payload)
	b = binary.AppendVarint(b, int64(len(e.Headers)+1))
	b = appendString(b, outbox.HeaderID)
	b = appendString(b, e.ID)
	for i := range e.Headers {
		b = appendString(b, e.Headers[i].Name)
		b = appendNullable(b, e.Headers[i].Value)
	}
	r.count++
	return b
}

func (r *recordBatch) firstTimeOr(e *outbox.Event) int64 {
	if r.count == 0 {
		return r.millis(e)
	}
	return r.firstTime
}

// millis is an event's time as Kafka writes it. Without one it is -1: no time. Brokers
// refuse what is more than an hour ahead of them (message.timestamp.after.max.ms), for which the
// event, stamped by a database whose clock is off, can do nothing.
func (r *recordBatch) millis(e *outbox.Event) int64 {
	if e.CreatedAt.IsZero() {
		return -1
	}
	return min(e.CreatedAt.UnixMilli(), r.latest)
}

// startBatch makes room for the header of a batch, which endBatch fills in.
func startBatch(b []byte) []byte { return append(b, make([]byte, batchHeader)...) }

// endBatch writes the header of a batch that ends with its last record.
func (r *recordBatch) endBatch(batch []byte, codec int8) {
	// The base offset, in the first 8 bytes, is the broker's to set.
	binary.BigEndian.PutUint32(batch[8:], uint32(len(batch)-batchPrefix))
	minusOne(batch[12:16]) // leader epoch: not known
	batch[magicAt] = 2
	binary.BigEndian.PutUint16(batch[21:], uint16(codec)) // attributes
	binary.BigEndian.PutUint32(batch[23:], uint32(r.count-1))
	binary.BigEndian.PutUint64(batch[27:], uint64(r.firstTime))
	binary.BigEndian.PutUint64(batch[35:], uint64(r.lastTime))
	minusOne(batch[43:57]) // producer id, its epoch and sequence: none
	binary.BigEndian.PutUint32(batch[57:], uint32(r.count))
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], castagnoli))
}

func minusOne(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

func appendNullable(b, value []byte) []byte {
	if value == nil {
		return binary.AppendVarint(b, -1)
	}
	b = binary.AppendVarint(b, int64(len(value)))
	return append(b, value...)
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendVarint(b, int64(len(s)))
	return append(b, s...)
}

func nullableSize(value []byte) int {
	if value == nil {
		return 1
	}
	return varintSize(int64(len(value))) + len(value)
}

func stringSize(s string) int { return varintSize(int64(len(s))) + len(s) }

func varintSize(v int64) int {
	zigzag := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(zigzag|1) + 6) / 7
}
