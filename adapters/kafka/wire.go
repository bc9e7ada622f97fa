package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// exchange is a fetch of one partition over a connection of kafka-go's
// transport, which routes it to the leader like any fetch.Request. The answer is
// read into one array and decoded here, because kafka-go's decoder copies every
// byte three times, drops the end offsets of batches, and drops the error of a
// corrupt batch that has good ones before it.
type exchange struct {
	fetch.Request
	rooms   *rooms
	version int16
}

const (
	// correlationID may be fixed: a connection carries one request at a time.
	correlationID = 1
	// minFetchVersion is the first that tells aborted transactions (Kafka 0.11).
	minFetchVersion = 4
	// maxAnswer refuses an answer that can only be nonsense, before its memory
	// is allocated.
	maxAnswer = 1 << 30
	// maxThrottle bounds how long a broker's word about a quota is taken for.
	maxThrottle = time.Minute
)

// Prepare is called by kafka-go with the version it negotiated.
func (e *exchange) Prepare(version int16) { e.version = version }

// Required and RawExchange make kafka-go hand over the connection.
func (e *exchange) Required(map[protocol.ApiKey]int16) bool { return true }

func (e *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if e.version < minFetchVersion {
		return nil, fmt.Errorf("the broker speaks version %d of the fetch protocol, want %d: use Kafka 1.0 or later", e.version, minFetchVersion)
	}
	if err := protocol.WriteRequest(rw, e.version, correlationID, clientID, &e.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(size[:]))
	if n < 4 || n > maxAnswer {
		return nil, fmt.Errorf("%w: an answer of %d bytes", errCorrupt, n)
	}
	room := e.rooms.take(int(n))
	if _, err := io.ReadFull(rw, room.bytes); err != nil {
		return nil, err
	}
	a, err := parseAnswer(room.bytes, e.version)
	if err != nil {
		return nil, err
	}
	a.room = room
	return a, nil
}

var (
	_ protocol.BrokerMessage   = (*exchange)(nil)
	_ protocol.PreparedMessage = (*exchange)(nil)
	_ protocol.RawExchanger    = (*exchange)(nil)
)

// answer is what a broker said about one partition.
type answer struct {
	code                int16         // error
	throttle            time.Duration // positive: nothing was read, ask again after it
	highWater, stable   int64
	abortedTransactions []fetch.ResponseTransaction
	records             []byte
	room                *room // where records lie
}

func (*answer) ApiKey() protocol.ApiKey { return protocol.Fetch }

func parseAnswer(body []byte, version int16) (*answer, error) {
	c := &cursor{data: body}
	if id := c.int32(); id != correlationID {
		return nil, fmt.Errorf("%w: an answer to request %d", errCorrupt, id)
	}
	// Since Kafka 2.0 a broker answers a client that is over its quota at once,
	// with nothing, and expects it to wait that long.
	throttle := time.Duration(c.int32()) * time.Millisecond
	a := &answer{}
	if version >= 7 {
		a.code = c.int16()
		c.int32() // session
	}
	if a.code != 0 {
		return a, c.err
	}
	topics := c.int32()
	if topics == 0 && throttle > 0 && c.err == nil {
		return &answer{throttle: min(throttle, maxThrottle)}, nil
	}
	if topics != 1 {
		return nil, fmt.Errorf("%w: an answer for %d topics", errCorrupt, topics)
	}
	c.bytes(int(c.int16())) // topic
	if partitions := c.int32(); partitions != 1 {
		return nil, fmt.Errorf("%w: an answer for %d partitions", errCorrupt, partitions)
	}
	c.int32() // partition
	a.code = c.int16()
	a.highWater = c.int64()
	a.stable = c.int64()
	if version >= 5 {
		c.int64() // start of the log
	}
	for range max(c.int32(), 0) {
		if c.err != nil {
			break
		}
		a.abortedTransactions = append(a.abortedTransactions, fetch.ResponseTransaction{ProducerID: c.int64(), FirstOffset: c.int64()})
	}
	if version >= 11 {
		c.int32() // preferred replica
	}
	if size := c.int32(); size > 0 {
		a.records = c.bytes(int(size))
	}
	if c.err != nil {
		return nil, fmt.Errorf("%w: the answer: %w", errCorrupt, c.err)
	}
	return a, nil
}

// cursor reads big-endian numbers, varints and byte strings. After a failure it
// returns zeros and keeps the error.
//
// It counts instead of slicing data shorter: a slice stored on the heap, once
// for every field of every record, costs the garbage collector a write barrier
// each: decoding took twice as long (BenchmarkDecode).
type cursor struct {
	data []byte
	at   int
	err  error
}

var errShort = errors.New("it ends too early")

// bytes returns the next n bytes, without copying. They can't be appended to in
// place.
func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > c.left() {
		c.fail()
		return nil
	}
	c.at += n
	return c.data[c.at-n : c.at : c.at]
}

// left is how many bytes have not been read.
func (c *cursor) left() int { return len(c.data) - c.at }

func (c *cursor) fail() { c.err, c.at = errShort, len(c.data) }

func (c *cursor) int16() int16 {
	if b := c.bytes(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) int32() int32 {
	if b := c.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) int64() int64 {
	if b := c.bytes(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// varint reads a zigzag-encoded number. Most are one byte: lengths and deltas of
// small records.
func (c *cursor) varint() int64 {
	if c.at < len(c.data) && c.data[c.at] < 0x80 {
		b := c.data[c.at]
		c.at++
		return int64(b>>1) ^ -int64(b&1)
	}
	return c.longVarint()
}

func (c *cursor) longVarint() int64 {
	v, n := binary.Varint(c.data[c.at:])
	if n <= 0 {
		c.fail()
		return 0
	}
	c.at += n
	return v
}

// nullable reads bytes with their length before them; a negative one is null.
func (c *cursor) nullable() []byte {
	n := c.varint()
	if n < 0 || c.err != nil {
		return nil
	}
	return c.bytes(int(min(n, maxAnswer+1)))
}
