package kafka_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// K6: read_committed delivers exactly what Java's consumer does: random transactions of four producers that overlap,
// commit and abort, five codecs, from random offsets, with fetches that end anywhere. With ReadUncommitted the aborted
// records arrive as well, and the markers still don't.
func TestK6ReadCommittedIsJavas(t *testing.T) {
	t.Parallel()
	broker := stack.Kafka(t)
	codecs := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	topics := make(map[string]string)
	args := []string{broker.Addr, "180", strconv.Itoa(rand.IntN(1 << 30))}
	for _, codec := range codecs {
		topics[codec] = stack.Topic(t, broker.Addr, 1)
		args = append(args, topics[codec], codec)
	}
	t.Logf("steps and seed: %v", args[1:3])
	java := make(map[string][]string) // by topic: "offset value"
	for _, line := range runJava(t, "Transactions", args...) {
		topic, record, _ := strings.Cut(line, " ")
		java[topic] = append(java[topic], record)
	}

	c := client(t, broker.Addr)
	read := func(t *testing.T, topic string, from, end int64, isolation kafka.Isolation, buffer int) []string {
		t.Helper()
		config := quick(broker.Addr, topic)
		config.Group = fmt.Sprintf("%s-%d-%d", topic, from, isolation)
		config.Identity.Missing = inbox.PositionID
		config.Isolation = isolation
		config.FetchMaxBytes, config.BufferBytes = 64<<10, buffer
		commitAs(t, c, config.Group, topic, from)
		processor := &recorder{}
		r := consume(t, config, processor)
		eventually(t, "the end", func() bool { return committedBy(c, config.Group, topic, 0) == end })
		r.stop()
		var got []string
		for _, m := range processor.settled() {
			got = append(got, strings.TrimPrefix(m.Position, topic+"/0/")+" "+string(m.Payload))
		}
		return got
	}
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) {
			t.Parallel()
			topic := topics[codec]
			end := endOffset(t, c, topic)
			all := read(t, topic, 0, end, kafka.ReadUncommitted, 0)
			if len(all) <= len(java[topic]) {
				t.Errorf("uncommitted: %d records, %d of them committed", len(all), len(java[topic]))
			}
			records := make(map[int64]bool)
			for _, record := range all {
				if !strings.HasPrefix(record[strings.Index(record, " ")+1:], "v") {
					t.Errorf("a marker was delivered: %q", record)
				}
				records[offsetOf(record)] = true
			}
			// Offsets without a record are markers. To start at one is the trap: its transaction's records are behind
			// us, and the producer's next transaction may be of the other kind.
			starts := []int64{0}
			for offset := range end {
				if !records[offset] {
					starts = append(starts, offset)
				}
			}
			rand.Shuffle(len(starts)-1, func(i, j int) { starts[i+1], starts[j+1] = starts[j+1], starts[i+1] })
			starts = append(starts[:min(10, len(starts))], rand.Int64N(end), rand.Int64N(end))
			for run, from := range starts {
				var want []string
				for _, record := range java[topic] {
					if offsetOf(record) >= from {
						want = append(want, record)
					}
				}
				got := read(t, topic, from, end, kafka.ReadCommitted, 48<<10<<(run%3))
				if !slices.Equal(got, want) {
					t.Fatalf("from %d: got %d records, Java %d; first difference at %d", from, len(got), len(want), firstDifference(got, want))
				}
			}
		})
	}
}

func endOffset(t *testing.T, c *kafkago.Client, topic string) int64 {
	t.Helper()
	response, err := c.ListOffsets(t.Context(), &kafkago.ListOffsetsRequest{
		Topics: map[string][]kafkago.OffsetRequest{topic: {kafkago.LastOffsetOf(0)}},
	})
	if err != nil || response.Topics[topic][0].Error != nil {
		t.Fatalf("end of %s: %v, %+v", topic, err, response)
	}
	return response.Topics[topic][0].LastOffset
}

// commitAs sets the offset of a group that nobody is in.
func commitAs(t *testing.T, c *kafkago.Client, group, topic string, offset int64) {
	t.Helper()
	response, err := c.OffsetCommit(t.Context(), &kafkago.OffsetCommitRequest{
		GroupID: group, GenerationID: -1, Topics: map[string][]kafkago.OffsetCommit{topic: {{Partition: 0, Offset: offset}}},
	})
	if err != nil || response.Topics[topic][0].Error != nil {
		t.Fatalf("commit: %v, %+v", err, response)
	}
}

// offsetOf is the offset of a record written "offset value".
func offsetOf(record string) int64 {
	offset, _, _ := strings.Cut(record, " ")
	n, _ := strconv.ParseInt(offset, 10, 64)
	return n
}

func firstDifference(a, b []string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
