package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// batch is one record batch of a partition's log, as its producer sent it.
type batch struct {
	base, last      int64 // offsets
	attributes      protocol.Attributes
	firstTime       int64 // ms since 1970
	lastTime        int64
	producer        int64
	count           int
	magic           byte
	records, legacy []byte // compressed, if attributes say so; legacy: the whole batch
}

const (
	batchPrefix = 12 // base offset and length, before what the length counts
	batchHeader = 61
	magicAt     = 16

	// logAppendTime: the broker's time, which is lastTime, counts for all
	// records.
	logAppendTime protocol.Attributes = 1 << 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// nextBatch reads the first batch of a log and returns what follows it. A batch
// that the broker cut off at the end is no batch: ok is false.
func nextBatch(log []byte) (b batch, rest []byte, ok bool, err error) {
	if len(log) < batchPrefix {
		return b, nil, false, nil
	}
	length := int64(int32(binary.BigEndian.Uint32(log[8:])))
	if length < 0 {
		return b, nil, false, fmt.Errorf("a length of %d", length)
	}
	if int64(len(log))-batchPrefix < length {
		return b, nil, false, nil
	}
	whole, rest := log[:batchPrefix+length], log[batchPrefix+length:]
	if len(whole) <= magicAt {
		return b, nil, false, fmt.Errorf("a length of %d", length)
	}
	b.base = int64(binary.BigEndian.Uint64(whole))
	b.last = b.base
	switch b.magic = whole[magicAt]; {
	case b.magic < 2:
		b.legacy = whole
		return b, rest, true, nil
	case b.magic > 2:
		return b, nil, false, fmt.Errorf("format %d", b.magic)
	case len(whole) < batchHeader:
		return b, nil, false, fmt.Errorf("a length of %d", length)
	}
	if want, got := binary.BigEndian.Uint32(whole[17:]), crc32.Checksum(whole[21:], castagnoli); got != want {
		return b, nil, false, fmt.Errorf("checksum %08x, want %08x", got, want)
	}
	c := cursor{data: whole[21:]}
	b.attributes = protocol.Attributes(c.int16())
	b.last = b.base + int64(c.int32())
	b.firstTime = c.int64()
	b.lastTime = c.int64()
	b.producer = c.int64()
	c.int16() // producer's epoch
	c.int32() // sequence
	b.count = int(c.int32())
	b.records = c.data[c.at:]
	// A record has at least seven bytes, packed or not: a count that can't be
	// must not be allocated for.
	if b.last < b.base || b.count < 0 || b.attributes.Compression() == 0 && b.count > len(b.records)/7+1 {
		return b, nil, false, fmt.Errorf("%d records up to offset %d", b.count, b.last)
	}
	return b, rest, true, nil
}

// unpack returns the batch's records, decompressed.
func (b *batch) unpack() ([]byte, error) {
	compression := b.attributes.Compression()
	if compression == 0 {
		return b.records, nil
	}
	codec := compression.Codec()
	if codec == nil {
		return nil, fmt.Errorf("unknown compression %d", compression)
	}
	reader := codec.NewReader(bytes.NewReader(b.records))
	defer reader.Close()
	var unpacked bytes.Buffer
	unpacked.Grow(4 * len(b.records))
	if _, err := unpacked.ReadFrom(io.LimitReader(reader, maxAnswer)); err != nil {
		return nil, fmt.Errorf("%s: %w", codec.Name(), err)
	}
	return unpacked.Bytes(), nil
}

// abort reports whether a control batch ends an aborted transaction.
func (b *batch) abort() (bool, error) {
	log, err := b.unpack()
	if err != nil || b.count == 0 { // compaction takes old markers too
		return false, err
	}
	c := cursor{data: log}
	c.varint() // length
	c.bytes(1) // attributes
	c.varint() // time
	c.varint() // offset
	key := cursor{data: c.nullable()}
	key.int16() // version
	kind := key.int16()
	return kind == controlAbort, errors.Join(c.err, key.err)
}

// record is one record; its bytes belong to the log it was read from.
type record struct {
	offset     int64
	time       int64 // ms since 1970
	key, value []byte
	headers    int
	more       cursor // stands before the headers
}

// next reads a record from log into r.
func (b *batch) next(log *cursor, r *record) error {
	c := cursor{data: log.nullable()}
	if log.err != nil {
		return log.err
	}
	c.bytes(1) // attributes: unused
	r.time = b.firstTime + c.varint()
	if b.attributes&logAppendTime != 0 {
		r.time = b.lastTime
	}
	r.offset = b.base + c.varint()
	r.key = c.nullable()
	r.value = c.nullable()
	r.headers = int(c.varint())
	if r.headers < 0 || r.headers > c.left()/2 {
		return errShort
	}
	r.more = c
	return c.err
}
