package kafka

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/onceward/onceward/inbox"
)

// producerBatch is the part of a fetch's records that came in one batch of its
// producer.
type producerBatch struct {
	end   int // index behind its last record
	bytes int // of keys and values
}

// messages turns records of one partition into messages and closes their keys
// and values, which returns kafka-go's buffers. Everything of a batch is copied
// into one array.
func messages(topic string, partition int, records []protocol.Record, batches []producerBatch, identity inbox.Identity) ([]inbox.Message, error) {
	if len(records) == 0 {
		return nil, nil
	}
	headers := 0
	for i := range records {
		headers += len(records[i].Headers)
	}
	var (
		out       = make([]inbox.Message, len(records))
		allHeader = make([]inbox.Header, 0, headers)
		prefix    = topic + "/" + strconv.Itoa(partition) + "/"
		positions strings.Builder
		digits    [20]byte
		start     int
	)
	positions.Grow(len(records) * (len(prefix) + len(strconv.FormatInt(records[len(records)-1].Offset, 10))))

	for _, batch := range batches {
		buffer := make([]byte, batch.bytes)
		for i := start; i < batch.end; i++ {
			record, m := &records[i], &out[i]
			m.Topic, m.Source = topic, topic

			var err error
			if m.Key, buffer, err = take(record.Key, buffer); err == nil {
				m.Payload, buffer, err = take(record.Value, buffer)
			}
			if err != nil {
				return nil, fmt.Errorf("copying the record at offset %d: %w", record.Offset, err)
			}
			if len(record.Headers) > 0 {
				first := len(allHeader)
				for _, h := range record.Headers {
					allHeader = append(allHeader, inbox.Header{Name: h.Key, Value: h.Value})
				}
				m.Headers = allHeader[first:len(allHeader):len(allHeader)]
			}
			m.Time = recordTime(record.Time)

			at := positions.Len()
			positions.WriteString(prefix)
			positions.Write(strconv.AppendInt(digits[:0], record.Offset, 10))
			m.Position = positions.String()[at:]

			identity.Resolve(m, "")
		}
		start = batch.end
	}
	return out, nil
}

// take moves what b holds to the front of buffer and returns it and the rest.
// Null stays nil, and empty stays empty.
func take(b protocol.Bytes, buffer []byte) (taken, rest []byte, err error) {
	if b == nil {
		return nil, buffer, nil
	}
	n := b.Len()
	taken, rest = buffer[:n:n], buffer[n:]
	_, err = io.ReadFull(b, taken)
	_ = b.Close()
	return taken, rest, err
}

// recordTime is zero for a record without a timestamp, which Kafka writes as -1.
func recordTime(t time.Time) time.Time {
	if t.UnixMilli() <= 0 {
		return time.Time{}
	}
	return t
}

func size(b protocol.Bytes) int {
	if b == nil {
		return 0
	}
	return b.Len()
}

func discard(record *protocol.Record) {
	if record.Key != nil {
		_ = record.Key.Close()
	}
	if record.Value != nil {
		_ = record.Value.Close()
	}
}
