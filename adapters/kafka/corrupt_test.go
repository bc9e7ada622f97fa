package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
)

// A corrupt batch is an error and delivers nothing of itself; what stands before it is delivered first.
func TestCorruptBatchIsTold(t *testing.T) {
	t.Parallel()
	good, bad := data(0, 1, 0, 3), data(3, 1, 0, 3).encode(t)
	bad[len(bad)-1] ^= 1
	out, values := decode(t, 0, &answer{records: append(good.encode(t), bad...)})
	if len(values) != 3 || out.next != 3 {
		t.Errorf("got %v, next %d", values, out.next)
	}
	if _, err := newFetcher().decode(&answer{records: bad}, 3); !errors.Is(err, errCorrupt) {
		t.Errorf("error %v", err)
	}
	// The checksum is right and the records are not: three are promised, two are there.
	short := data(3, 1, 0, 2).encode(t)
	binary.BigEndian.PutUint32(short[57:], 3)
	binary.BigEndian.PutUint32(short[17:], crc32.Checksum(short[21:], castagnoli))
	out, values = decode(t, 0, &answer{records: append(good.encode(t), short...)})
	if len(values) != 3 || out.next != 3 {
		t.Errorf("got %v, next %d", values, out.next)
	}
	if _, err := newFetcher().decode(&answer{records: short}, 3); !errors.Is(err, errCorrupt) {
		t.Errorf("error %v", err)
	}
}

// A control batch that can't be read may end an aborted transaction: what is behind it can't be told apart without it, so
// it is not passed over.
func TestUnreadableControlBatchIsNotPassedOver(t *testing.T) {
	t.Parallel()
	good := data(0, 1, 0, 3).encode(t)
	spoiled := marker(3, 1, 0)
	spoiled.records[0].Key = protocol.NewBytes([]byte{0, 0, 0}) // a version, and half a type
	behind := data(4, 1, 0, 2).encode(t)
	bad := append(spoiled.encode(t), behind...)
	out, values := decode(t, 0, &answer{records: append(good, bad...)})
	if len(values) != 3 || out.next != 3 {
		t.Errorf("got %v, next %d", values, out.next)
	}
	if out, err := newFetcher().decode(&answer{records: bad}, 3); !errors.Is(err, errCorrupt) || len(out.messages) > 0 {
		t.Errorf("error %v with %d messages", err, len(out.messages))
	}
}

// An answer of old batches and one that is cut off is not passed over: the rest of that one may hold the next record.
func TestBatchThatIsCutOffIsNotPassedOver(t *testing.T) {
	t.Parallel()
	old, cut := data(0, 1, 0, 3).encode(t), data(3, 1, 0, 3).encode(t)
	out, err := newFetcher().decode(&answer{records: append(old, cut[:len(cut)-1]...)}, 3)
	if !errors.Is(err, errCorrupt) || out.next != 3 {
		t.Errorf("error %v, next %d", err, out.next)
	}
}

// What a record says about its headers is not allocated for, beyond what its bytes can hold: a count that can't be is a
// corrupt batch, and one with many headers says nothing about the records behind it.
func TestAbsurdHeaderCountsCostLittle(t *testing.T) { // not parallel: it measures allocations
	// declare makes a batch of one record that declares so many headers; what is there of them is rest.
	declare := func(count int64, rest []byte) []byte {
		b := data(0, 1, 0, 1).encode(t)
		_, n := binary.Varint(b[batchHeader:]) // the record's length
		record := b[batchHeader+n : len(b)-1]  // without its count of headers, 0
		record = append(binary.AppendVarint(slices.Clone(record), count), rest...)
		b = append(binary.AppendVarint(b[:batchHeader:batchHeader], int64(len(record))), record...)
		binary.BigEndian.PutUint32(b[8:], uint32(len(b)-batchPrefix))
		binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
		return b
	}
	noise := bytes.Repeat([]byte{0xff}, 4<<20) // room for two million headers, and not one
	for name, log := range map[string][]byte{
		"-1": declare(-1, nil), "1": declare(1, nil), "2^31-1": declare(1<<31-1, nil), "2^63-1": declare(1<<63-1, nil),
		"2 million": declare(2_000_000, noise),
	} {
		var err error
		if cost := allocated(func() { _, err = newFetcher().decode(&answer{records: log}, 0) }); cost > 512<<10 {
			t.Errorf("%s headers: %d kB were allocated", name, cost>>10)
		}
		if !errors.Is(err, errCorrupt) {
			t.Errorf("%s headers: error %v", name, err)
		}
	}

	many := data(0, 1, 0, 20_000)
	many.records[0].Headers = make([]protocol.Header, 2*maxHeaderRoom)
	for i := range many.records[1:] {
		many.records[i+1].Headers = make([]protocol.Header, 1)
	}
	log := many.encode(t)
	var out fetched
	var err error
	cost := allocated(func() { out, err = newFetcher().decode(&answer{records: log}, 0) })
	if err != nil || len(out.messages) != 20_000 || len(out.messages[0].Headers) != 2*maxHeaderRoom || len(out.messages[19_999].Headers) != 1 {
		t.Fatalf("%d messages, error %v", len(out.messages), err)
	}
	if cost > 20<<20 { // as many headers for each of the records would be 6.5 GB
		t.Errorf("%d MB were allocated", cost>>20)
	}
}

// allocated is how many bytes a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
