package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/onceward/onceward/outbox"
)

// encoded is a record set of the events as it goes over the wire, with its size before it.
func encoded(t testing.TB, codec kafka.Compression, events ...outbox.Event) []byte {
	t.Helper()
	r := newProduceRequest(time.Second, 0)
	b := recordBatch{latest: math.MaxInt64}
	at := r.begin(&queue{layout: &layout{topic: "orders"}})
	for i := range events {
		size := b.next(&events[i])
		before := len(r.bytes)
		r.bytes = b.add(r.bytes, &events[i], size)
		if got := len(r.bytes) - before; got != size+varintSize(int64(size)) {
			t.Errorf("record %d has %d bytes, foretold were %d and their length", i, got, size)
		}
	}
	if err := r.end(at, &b, codec); err != nil {
		t.Fatal(err)
	}
	return r.bytes[at-4:]
}

// K11, K13: kafka-go's decoder, which checks the checksum, reads what we wrote: null and empty apart, times before and
// after the first, long and short.
func TestK13RecordsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	base := time.UnixMilli(1_750_000_000_000)
	variants := [][]byte{nil, {}, []byte("x"), bytes.Repeat([]byte("long"), 50_000)}
	var events []outbox.Event
	for i, key := range variants {
		for j, payload := range variants {
			for k, header := range variants {
				n := len(events)
				events = append(events, outbox.Event{
					Message: outbox.Message{
						ID: fmt.Sprintf("id-%d", n), Topic: "orders", Key: key, Payload: payload,
						Headers: []outbox.Header{{Name: "h", Value: header}, {Name: "h", Value: []byte("twice")}}[:k%3],
					},
					CreatedAt: base.Add(time.Duration(i*1000-j*1_000_000+k) * time.Millisecond),
				})
			}
		}
	}
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		var set protocol.RecordSet
		wire := encoded(t, codec, events...)
		if n, err := set.ReadFrom(bytes.NewReader(wire)); err != nil || n != int64(len(wire)) {
			t.Fatalf("%v: read %d of %d bytes: %v", codec, n, len(wire), err)
		}
		for i := 0; ; i++ {
			r, err := set.Records.ReadRecord()
			if errors.Is(err, io.EOF) {
				if i != len(events) {
					t.Errorf("%v: %d records, want %d", codec, i, len(events))
				}
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			e := &events[i]
			key, _ := protocol.ReadAll(r.Key)
			value, _ := protocol.ReadAll(r.Value)
			if r.Offset != int64(i) || !r.Time.Equal(e.CreatedAt) || !same(key, e.Key) || !same(value, e.Payload) {
				t.Fatalf("%v: record %d is not what it was", codec, i)
			}
			if len(r.Headers) != len(e.Headers)+1 || r.Headers[0].Key != outbox.HeaderID || string(r.Headers[0].Value) != e.ID {
				t.Fatalf("%v: record %d has the headers %v", codec, i, r.Headers)
			}
			for j, h := range e.Headers {
				if got := r.Headers[j+1]; got.Key != h.Name || !same(got.Value, h.Value) {
					t.Errorf("%v: header %d of record %d is %v", codec, j, i, got)
				}
			}
		}
	}
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// BenchmarkEncode compares our records with kafka-go's of the same events: 1,000 of 1 KB with a header.
func BenchmarkEncode(b *testing.B) {
	events := make([]outbox.Event, 1000)
	for i := range events {
		events[i] = outbox.Event{CreatedAt: time.Now(), Message: outbox.Message{
			ID: fmt.Sprintf("0193d5a0-7a4e-7000-8000-%012d", i), Topic: "orders", Key: fmt.Appendf(nil, "key-%d", i),
			Payload: make([]byte, 1000), Headers: []outbox.Header{{Name: "traceparent", Value: make([]byte, 55)}},
		}}
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(1000 * 1000)
		q := &queue{layout: &layout{topic: "orders"}}
		for b.Loop() {
			r := newProduceRequest(time.Second, 0)
			batch := recordBatch{latest: math.MaxInt64}
			at := r.begin(q)
			for i := range events {
				r.bytes = batch.add(r.bytes, &events[i], batch.next(&events[i]))
			}
			if err := r.end(at, &batch, 0); err != nil {
				b.Fatal(err)
			}
			if _, err := io.Discard.Write(r.bytes); err != nil {
				b.Fatal(err)
			}
			r.release()
		}
	})
	b.Run("kafka-go", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(1000 * 1000)
		for b.Loop() {
			records := make([]protocol.Record, len(events))
			for i := range events {
				e := &events[i]
				records[i] = protocol.Record{
					Time: e.CreatedAt, Key: protocol.NewBytes(e.Key), Value: protocol.NewBytes(e.Payload),
					Headers: []protocol.Header{{Key: outbox.HeaderID, Value: []byte(e.ID)}, {Key: e.Headers[0].Name, Value: e.Headers[0].Value}},
				}
			}
			set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(records...)}
			if _, err := set.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
}
