package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/outbox"
)

// sent is one record of a topic.
type sent struct {
	id, key string
	value   []byte
	headers []kafka.Header
}

// readTopic returns all records of a topic, one partition after the other.
func readTopic(t testing.TB, broker, topic string, partitions int) (records []sent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for partition := range partitions {
		conn, err := kafka.DialLeader(ctx, "tcp", broker, topic, partition)
		if err != nil {
			t.Fatalf("dial the leader of %s/%d: %v", topic, partition, err)
		}
		_, end, err := conn.ReadOffsets()
		if err != nil {
			t.Fatalf("end of %s/%d: %v", topic, partition, err)
		}
		_ = conn.Close()
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{broker}, Topic: topic, Partition: partition, MaxBytes: 16 << 20,
			MaxWait: 50 * time.Millisecond, // Close waits for as long
		})
		for next := int64(0); next < end; {
			m, err := reader.ReadMessage(ctx)
			if err != nil {
				t.Fatalf("read %s/%d at %d of %d: %v", topic, partition, next, end, err)
			}
			s := sent{key: string(m.Key), value: m.Value, headers: m.Headers}
			for _, h := range m.Headers {
				if h.Key == outbox.HeaderID {
					s.id = string(h.Value)
				}
			}
			records = append(records, s)
			next = m.Offset + 1
		}
		_ = reader.Close()
	}
	return records
}

// idsOf is what a verdict needs.
func idsOf(records []sent) []string {
	published := make([]string, len(records))
	for i, r := range records {
		published[i] = r.id
	}
	return published
}
