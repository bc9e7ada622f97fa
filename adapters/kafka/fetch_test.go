package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
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
	binary.BigEndian.PutUint32(wire[17:], crc32.Checksum(wire[21:], crc32.MakeTable(crc32.Castagnoli)))
	return wire
}

func response(t testing.TB, aborted []fetch.ResponseTransaction, batches ...wireBatch) *fetch.ResponsePartition {
	t.Helper()
	var wire []byte
	for _, b := range batches {
		wire = append(wire, b.encode(t)...)
	}
	r := &fetch.ResponsePartition{AbortedTransactions: aborted}
	if _, err := r.RecordSet.ReadFrom(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(wire))), wire...))); err != nil {
		t.Fatal(err)
	}
	return r
}

func newFetcher() *fetcher {
	return &fetcher{topic: "orders", identity: inbox.Identity{Missing: inbox.PositionID}, limit: 1 << 20, ask: 1 << 20}
}

func decode(t *testing.T, from int64, r *fetch.ResponsePartition) (fetched, []string) {
	t.Helper()
	batch, err := newFetcher().decode(r, from)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for i, m := range batch.messages {
		values = append(values, string(m.Payload))
		if want := fmt.Sprintf("orders/0/%d", batch.offsets[i]); m.Position != want {
			t.Errorf("position %q, want %q", m.Position, want)
		}
	}
	return batch, values
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

// K16: the next offset comes from the batch, and a batch with nothing new in it moves it by one.
func TestK16NextOffsetComesFromTheBatch(t *testing.T) {
	t.Parallel()
	empty := data(10, 1, 0, 5)
	empty.empty = true
	tail := data(10, 1, 0, 2)
	for name, c := range map[string]struct {
		from, next int64
		stuck      bool
		batches    []wireBatch
	}{
		"nothing there":           {from: 7, next: 7},
		"records":                 {from: 0, next: 3, batches: []wireBatch{data(0, 1, 0, 3)}},
		"from inside a batch":     {from: 2, next: 3, batches: []wireBatch{data(0, 1, 0, 3)}},
		"a trailing marker":       {from: 5, next: 6, batches: []wireBatch{marker(5, 1, 1)}},
		"an empty batch ahead":    {from: 3, next: 10, batches: []wireBatch{empty}},
		"inside an empty batch":   {from: 12, next: 13, stuck: true, batches: []wireBatch{empty}},
		"empty batch, then more":  {from: 12, next: 16, batches: []wireBatch{empty, data(15, 1, 0, 1)}},
		"behind a compacted tail": {from: 14, next: 15, stuck: true, batches: []wireBatch{tail}},
	} {
		batch, _ := decode(t, c.from, response(t, nil, c.batches...))
		if batch.next != c.next || batch.stuck != c.stuck {
			t.Errorf("%s: next %d, stuck %v; want %d, %v", name, batch.next, batch.stuck, c.next, c.stuck)
		}
	}
}

// K16: where records unpack to more than the limit, less is asked for; a batch that hides what is behind it makes it more.
func TestK16AskAdaptsToCompressionAndHiddenBatches(t *testing.T) {
	t.Parallel()
	f := newFetcher()
	f.adapt(fetched{bytes: 10 << 20})
	if f.ask != f.limit/2 {
		t.Errorf("asks for %d after ten times the limit", f.ask)
	}
	f.adapt(fetched{bytes: 1000})
	if f.ask != f.limit {
		t.Errorf("asks for %d after little", f.ask)
	}
	f.adapt(fetched{stuck: true})
	if f.ask != 2*f.limit {
		t.Errorf("asks for %d while stuck", f.ask)
	}
	f.adapt(fetched{bytes: f.limit})
	if f.ask != f.limit {
		t.Errorf("asks for %d afterwards", f.ask)
	}
}

// K16: at most two allocations for a record.
func TestK16AllocationsPerRecord(t *testing.T) {
	const n = 1000
	b := data(0, 1, 0, n)
	for i := range b.records {
		b.records[i].Key = protocol.NewBytes([]byte("key"))
	}
	f := newFetcher()
	f.identity = inbox.Identity{}
	wire := b.encode(t)
	wire = append(binary.BigEndian.AppendUint32(nil, uint32(len(wire))), wire...)
	allocs := testing.AllocsPerRun(20, func() {
		r := &fetch.ResponsePartition{}
		_, _ = r.RecordSet.ReadFrom(bytes.NewReader(wire))
		if batch, err := f.decode(r, 0); err != nil || len(batch.messages) != n {
			t.Fatal(err)
		}
	})
	if allocs > 2*n {
		t.Errorf("%.1f allocations for %d records", allocs, n)
	}
	t.Logf("%.2f allocations a record", allocs/n)
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

func TestCorruptBatchIsTold(t *testing.T) {
	t.Parallel()
	wire := data(0, 1, 0, 3).encode(t)
	wire[len(wire)-1] ^= 1
	var set protocol.RecordSet
	_, err := set.ReadFrom(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(wire))), wire...)))
	if err == nil || !errors.Is(classify(err), errCorrupt) {
		t.Errorf("error %v", err)
	}
}

func TestRecordWithoutATimestampHasNone(t *testing.T) {
	t.Parallel()
	if got := recordTime(time.UnixMilli(-1)); !got.IsZero() {
		t.Errorf("got %v", got)
	}
	if now := time.UnixMilli(time.Now().UnixMilli()); !recordTime(now).Equal(now) {
		t.Error("a time was lost")
	}
}
