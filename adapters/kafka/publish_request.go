package kafka

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

const (
	// requestBytes bounds a request with more than one record.
	requestBytes = 32 << 20
	// maxRecordBytes bounds a record. A broker answers a request over its
	// socket.request.max.bytes, 100 MiB unless set, by closing the connection,
	// which would look like an outage, for ever.
	maxRecordBytes = 100<<20 - 64<<10
	// recordOverhead is what a record takes beside its key, value and ID, more or less.
	recordOverhead = 32
	// maxKeptFrame is the largest array that is kept for later requests.
	maxKeptFrame = 8 << 20

	// minProduceVersion is the first that takes batches with headers (Kafka
	// 0.11). The request has the same form up to version 8, the last one that
	// kafka-go speaks.
	minProduceVersion = 3
	versionAt         = 6 // in a request
)

// produceRequest is one request to one broker, with a batch for each of its
// queues. It is written into one array, which is sent as it is: payloads are
// copied once, from the event to there.
//
// It belongs to one attempt. Once it was given to the transport only
// RawExchange, in the goroutine of the connection, touches the array: that may
// go on after Publish has returned because its context ended.
type produceRequest struct {
	bytes []byte
	plain []byte // records of a batch that is to be compressed

	topic                   string // whose partitions are being added
	topics, topicsAt        int    // number of topics, and where it stands
	partitions, partitionAt int    // the same of its partitions
}

var requests = sync.Pool{New: func() any { return new(produceRequest) }}

// newProduceRequest returns a request without batches. Within patience the
// broker must have its replicas' word. There is room for an estimate of its bytes, which
// it would else find by being copied again and again.
func newProduceRequest(patience time.Duration, estimate int) *produceRequest {
	r := requests.Get().(*produceRequest)
	b := slices.Grow(r.bytes[:0], min(estimate, requestBytes))
	b = append(b, 0, 0, 0, 0) // size
	b = binary.BigEndian.AppendUint16(b, uint16(protocol.Produce))
	b = append(b, 0, 0) // version
	b = binary.BigEndian.AppendUint32(b, correlationID)
	b = appendShortString(b, clientID)
	b = append(b, 0xff, 0xff) // no transaction
	b = append(b, 0xff, 0xff) // acks: all
	b = binary.BigEndian.AppendUint32(b, uint32(max(patience.Milliseconds(), 1)))
	r.topic, r.topics, r.topicsAt = "", 0, len(b)
	b = append(b, 0, 0, 0, 0)
	r.bytes = b
	return r
}

// begin starts a batch for a queue. Queues of one topic follow each other.
func (r *produceRequest) begin(q *queue) (batchAt int) {
	if r.topics == 0 || r.topic != q.layout.topic {
		r.topic, r.partitions = q.layout.topic, 0
		r.topics++
		r.bytes = appendShortString(r.bytes, r.topic)
		r.partitionAt = len(r.bytes)
		r.bytes = append(r.bytes, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(r.bytes[r.topicsAt:], uint32(r.topics))
	}
	r.partitions++
	binary.BigEndian.PutUint32(r.bytes[r.partitionAt:], uint32(r.partitions))
	r.bytes = binary.BigEndian.AppendUint32(r.bytes, uint32(q.partition))
	r.bytes = append(r.bytes, 0, 0, 0, 0) // size of the batch
	batchAt = len(r.bytes)
	r.bytes = startBatch(r.bytes)
	return batchAt
}

// end completes the batch, compressing it if codec isn't 0.
func (r *produceRequest) end(batchAt int, batch *recordBatch, codec kafka.Compression) error {
	if codec != 0 {
		records := batchAt + batchHeader
		r.plain = append(r.plain[:0], r.bytes[records:]...)
		r.bytes = r.bytes[:records]
		w := codec.Codec().NewWriter(r)
		_, err := w.Write(r.plain)
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			return fmt.Errorf("kafka: compressing a batch: %w", err)
		}
	}
	binary.BigEndian.PutUint32(r.bytes[batchAt-4:], uint32(len(r.bytes)-batchAt))
	batch.endBatch(r.bytes[batchAt:], int8(codec))
	return nil
}

// Write appends what a compressor wrote.
func (r *produceRequest) Write(b []byte) (int, error) {
	r.bytes = append(r.bytes, b...)
	return len(b), nil
}

func (r *produceRequest) release() {
	if cap(r.bytes) <= maxKeptFrame && cap(r.plain) <= maxKeptFrame {
		requests.Put(r)
	}
}

// ApiKey, Prepare, Required and RawExchange make kafka-go hand over a
// connection to the broker.
func (r *produceRequest) ApiKey() protocol.ApiKey { return protocol.Produce }

func (r *produceRequest) Prepare(version int16) {
	binary.BigEndian.PutUint16(r.bytes[versionAt:], uint16(version))
}

func (r *produceRequest) Required(map[protocol.ApiKey]int16) bool { return true }

func (r *produceRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	version := int16(binary.BigEndian.Uint16(r.bytes[versionAt:]))
	if version < minProduceVersion {
		return nil, fmt.Errorf("the broker speaks version %d of the produce protocol, want %d: use Kafka 1.0 or later", version, minProduceVersion)
	}
	binary.BigEndian.PutUint32(r.bytes, uint32(len(r.bytes)-4))
	_, err := rw.Write(r.bytes)
	r.release()
	if err != nil {
		return nil, err
	}
	id, response, err := protocol.ReadResponse(rw, protocol.Produce, version)
	if err != nil {
		return nil, err
	}
	if id != correlationID {
		return nil, fmt.Errorf("%w: an answer to request %d", errCorrupt, id)
	}
	return response.(*produce.Response), nil
}

var (
	_ protocol.PreparedMessage = (*produceRequest)(nil)
	_ protocol.RawExchanger    = (*produceRequest)(nil)
)

// appendShortString writes a string as requests have it. Names of topics and
// clients are short.
func appendShortString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}
