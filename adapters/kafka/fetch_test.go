package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/onceward/onceward/inbox"
)

// wireBatch is a record batch as a broker sends it.
type wireBatch struct {
	base       int64
	producer   int64
	attributes protocol.Attributes
	records    []protocol.Record
	empty      bool // compaction took the records
}

func marker(base, producer int64, kind int16) wireBatch {
	control := protocol.ControlRecord{Type: kind, Data: make([]byte, 6)}
	return wireBatch{
		base: base, producer: producer, attributes: protocol.Transactional | protocol.Control,
		records: []protocol.Record{control.Record()},
	}
}

func data(base, producer int64, attributes protocol.Attributes, n int) wireBatch {
	b := wireBatch{base: base, producer: producer, attributes: attributes}
	for i := range n {
		b.records = append(b.records, protocol.Record{
			Time:  time.UnixMilli(1_700_000_000_000),
			Value: protocol.NewBytes(fmt.Appendf(nil, "v%d", base+int64(i))),
		})
	}
	return b
}

// encode writes the batch. kafka-go's encoder knows no producers, bases and empty batches, so they are patched in.
func (b wireBatch) encode(t testing.TB) []byte {
	t.Helper()
	var buffer bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: b.attributes, Records: protocol.NewRecordReader(b.records...)}
	if _, err := set.WriteTo(&buffer); err != nil {
		t.Fatal(err)
	}
	wire := buffer.Bytes()[4:]
	if b.empty {
		wire = wire[:61]
		binary.BigEndian.PutUint32(wire[57:], 0)
		binary.BigEndian.PutUint32(wire[8:], uint32(len(wire)-12))
	}
	binary.BigEndian.PutUint64(wire, uint64(b.base))
	binary.BigEndian.PutUint64(wire[43:], uint64(b.producer))
	binary.BigEndian.PutUint32(wire[17:], crc32.Checksum(wire[21:], castagnoli))
	return wire
}

func response(t testing.TB, aborted []fetch.ResponseTransaction, batches ...wireBatch) *answer {
	t.Helper()
	a := &answer{abortedTransactions: aborted}
	for _, b := range batches {
		a.records = append(a.records, b.encode(t)...)
	}
	return a
}

func newFetcher() *fetcher {
	return &fetcher{
		topic: "orders", limit: 1 << 20, ask: 1 << 20,
		messages: newMessages("orders", 0, inbox.Identity{Missing: inbox.PositionID}),
	}
}

func decode(t *testing.T, from int64, a *answer) (fetched, []string) {
	t.Helper()
	out, err := newFetcher().decode(a, from)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for i, m := range out.messages {
		values = append(values, string(m.Payload))
		if want := fmt.Sprintf("orders/0/%d", out.offsets[i]); m.Position != want || m.ID != want {
			t.Errorf("position %q, ID %q, want %q", m.Position, m.ID, want)
		}
	}
	return out, values
}

const txn = protocol.Transactional

// K6: aborted records and markers are left out; what others wrote in between is not.
func TestK6AbortedRecordsAreLeftOut(t *testing.T) {
	t.Parallel()
	aborted := []fetch.ResponseTransaction{{ProducerID: 2, FirstOffset: 2}}
	batch, values := decode(t, 0, response(t, aborted,
		data(0, 1, txn, 2), data(2, 2, txn, 2), data(4, 2, 0, 1), data(5, 1, txn, 1), marker(6, 2, 0), marker(7, 1, 1), data(8, 2, txn, 1), marker(9, 2, 1)))
	if want := []string{"v0", "v1", "v4", "v5", "v8"}; !slices.Equal(values, want) {
		t.Errorf("got %v, want %v", values, want)
	}
	if batch.next != 10 || batch.aborted != 2 {
		t.Errorf("next %d, aborted %d", batch.next, batch.aborted)
	}
}

// K6, the trap: a fetch that starts between the last record of an aborted transaction and its marker must not take the
// producer's next, committed transaction for the aborted one.
func TestK6FetchThatStartsAtTheMarker(t *testing.T) {
	t.Parallel()
	aborted := []fetch.ResponseTransaction{{ProducerID: 2, FirstOffset: 0}}
	_, values := decode(t, 3, response(t, aborted, marker(3, 2, 0), data(4, 2, txn, 2), marker(6, 2, 1)))
	if want := []string{"v4", "v5"}; !slices.Equal(values, want) {
		t.Errorf("got %v, want %v", values, want)
	}
}

// K6: a record that looks like a marker is a record.
func TestK6RecordShapedLikeAMarkerIsDelivered(t *testing.T) {
	t.Parallel()
	shaped := data(0, 1, 0, 1)
	shaped.records[0].Key, shaped.records[0].Value = protocol.NewBytes([]byte{0, 0, 0, 0}), protocol.NewBytes(make([]byte, 6))
	if batch, _ := decode(t, 0, response(t, nil, shaped)); len(batch.messages) != 1 {
		t.Error("it was dropped")
	}
}

// K16: the next offset comes from the batch, not from the last record seen, so compacted and empty batches are passed in
// one step. An answer that doesn't reach the offset moves it by one.
func TestK16NextOffsetComesFromTheBatch(t *testing.T) {
	t.Parallel()
	empty := data(10, 1, 0, 5)
	empty.empty = true
	for name, c := range map[string]struct {
		from, next int64
		batches    []wireBatch
	}{
		"nothing there":          {from: 7, next: 7},
		"records":                {from: 0, next: 3, batches: []wireBatch{data(0, 1, 0, 3)}},
		"from inside a batch":    {from: 2, next: 3, batches: []wireBatch{data(0, 1, 0, 3)}},
		"a trailing marker":      {from: 5, next: 6, batches: []wireBatch{marker(5, 1, 1)}},
		"an empty batch ahead":   {from: 3, next: 15, batches: []wireBatch{empty}},
		"inside an empty batch":  {from: 12, next: 15, batches: []wireBatch{empty}},
		"empty batch, then more": {from: 12, next: 16, batches: []wireBatch{empty, data(15, 1, 0, 1)}},
		"nothing but old":        {from: 20, next: 21, batches: []wireBatch{empty}},
	} {
		out, _ := decode(t, c.from, response(t, nil, c.batches...))
		if out.next != c.next {
			t.Errorf("%s: next %d, want %d", name, out.next, c.next)
		}
		for _, offset := range out.offsets {
			if offset < c.from {
				t.Errorf("%s: offset %d was delivered", name, offset)
			}
		}
	}
}

// Where records unpack to more than the limit, less is asked for.
func TestFetchSizeAdaptsToCompression(t *testing.T) {
	t.Parallel()
	f := newFetcher()
	f.adapt(10 << 20)
	if f.ask != f.limit/2 {
		t.Errorf("asks for %d after ten times the limit", f.ask)
	}
	f.adapt(1000)
	if f.ask != f.limit {
		t.Errorf("asks for %d after little", f.ask)
	}
}

func TestCompressedRecordsAreUnpacked(t *testing.T) {
	t.Parallel()
	for _, codec := range []protocol.Attributes{protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		_, values := decode(t, 1, response(t, nil, data(0, 1, codec, 3)))
		if want := []string{"v1", "v2"}; !slices.Equal(values, want) {
			t.Errorf("%v: got %v", codec, values)
		}
	}
}

// The formats before Kafka 0.11 may still lie in old logs.
func TestLegacyFormatIsRead(t *testing.T) {
	t.Parallel()
	for _, codec := range []protocol.Attributes{0, protocol.Gzip} {
		var buffer bytes.Buffer
		b := data(0, 1, 0, 3)
		set := protocol.RecordSet{Version: 1, Attributes: codec, Records: protocol.NewRecordReader(b.records...)}
		if _, err := set.WriteTo(&buffer); err != nil {
			t.Fatal(err)
		}
		out, values := decode(t, 0, &answer{records: buffer.Bytes()[4:]})
		if want := []string{"v0", "v1", "v2"}; !slices.Equal(values, want) {
			t.Errorf("codec %v: got %v, next %d", codec, values, out.next)
		}
	}
}

// K16: at most two allocations for a record.
func TestK16AllocationsPerRecord(t *testing.T) {
	const n = 1000
	b := data(0, 1, 0, n)
	for i := range b.records {
		b.records[i].Key = protocol.NewBytes([]byte("key"))
		b.records[i].Headers = []protocol.Header{{Key: inbox.HeaderID, Value: []byte("0123456789abcdef")}}
	}
	f, a := newFetcher(), response(t, nil, b)
	allocs := testing.AllocsPerRun(20, func() {
		if out, err := f.decode(a, 0); err != nil || len(out.messages) != n {
			t.Fatal(err)
		}
	})
	if allocs > 2*n {
		t.Errorf("%.1f allocations for %d records", allocs, n)
	}
	t.Logf("%.2f allocations a record with an ID", allocs/n)
}

// K13: null and empty are told apart, and one record's bytes can't be reached from another's.
func TestK13NullAndEmptyAreToldApart(t *testing.T) {
	t.Parallel()
	b := wireBatch{records: []protocol.Record{
		{Key: nil, Value: nil},
		{Key: protocol.NewBytes([]byte{}), Value: protocol.NewBytes([]byte{}), Headers: []protocol.Header{{Key: "n"}, {Key: "e", Value: []byte{}}}},
		{Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes([]byte("v"))},
	}}
	batch, _ := decode(t, 0, response(t, nil, b))
	null, empty, full := batch.messages[0], batch.messages[1], batch.messages[2]
	if null.Key != nil || null.Payload != nil {
		t.Errorf("null became %#v, %#v", null.Key, null.Payload)
	}
	if empty.Key == nil || empty.Payload == nil || len(empty.Key)+len(empty.Payload) > 0 {
		t.Errorf("empty became %#v, %#v", empty.Key, empty.Payload)
	}
	if empty.Headers[0].Value != nil || empty.Headers[1].Value == nil {
		t.Errorf("headers became %#v", empty.Headers)
	}
	_ = append(full.Key, 'x')
	if string(full.Payload) != "v" {
		t.Error("a payload was overwritten through a key")
	}
}

// Whatever a broker sends, decoding ends in messages or an error, and moves on or fails.
func FuzzDecode(f *testing.F) {
	f.Add(data(0, 1, 0, 3).encode(f), int64(0), true)
	f.Add(marker(5, 1, 0).encode(f), int64(5), true)
	f.Add(data(0, 1, protocol.Gzip, 3).encode(f), int64(1), true)
	f.Fuzz(func(t *testing.T, log []byte, from int64, sign bool) {
		if sign && len(log) >= batchHeader { // past the checksum, to what lies behind
			binary.BigEndian.PutUint32(log[17:], crc32.Checksum(log[21:], castagnoli))
		}
		from = max(from, 0) >> 1
		out, err := newFetcher().decode(&answer{records: log}, from)
		if err == nil && len(log) > 0 && out.next <= from {
			t.Errorf("no error and no progress from %d", from)
		}
		for _, offset := range out.offsets {
			if offset < from {
				t.Errorf("offset %d is before %d", offset, from)
			}
		}
		_, _ = parseAnswer(log, 11)
	})
}

func TestRecordWithoutATimestampHasNone(t *testing.T) {
	t.Parallel()
	if got := recordTime(-1); !got.IsZero() {
		t.Errorf("got %v", got)
	}
	if now := time.Now().UnixMilli(); recordTime(now).UnixMilli() != now {
		t.Error("a time was lost")
	}
}

// BenchmarkDecode is what reading costs besides the network: batches of 100 records of 1 KB with a key and an ID.
func BenchmarkDecode(b *testing.B) {
	const n = 100
	batch := wireBatch{}
	for i := range n {
		batch.records = append(batch.records, protocol.Record{
			Key: protocol.NewBytes(fmt.Append(nil, i)), Value: protocol.NewBytes(make([]byte, 1024)),
			Headers: []protocol.Header{{Key: inbox.HeaderID, Value: fmt.Appendf(nil, "019a0000-0000-7000-8000-%012x", i)}},
		})
	}
	f, a := newFetcher(), &answer{records: bytes.Repeat(batch.encode(b), 10)}
	b.ReportAllocs()
	b.SetBytes(int64(len(a.records)))
	for b.Loop() {
		if _, err := f.decode(a, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*10*n), "ns/record")
}
