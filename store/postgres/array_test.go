package postgres

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
)

func TestBytesOfAnySizeStandInAnArrayAsHex(t *testing.T) {
	t.Parallel()
	var literal arrayLiteral
	var want strings.Builder
	want.WriteByte('{')
	for _, size := range []int{0, 1, 255, 256, 257, 1000} {
		value := bytes.Repeat([]byte{0xa5}, size)
		literal.addBytes(value)
		want.WriteString(`"\\x` + hex.EncodeToString(value) + `",`)
	}
	literal.addBytes(nil)
	want.WriteString(`""}`)
	for range 2 {
		if got := literal.String(); got != want.String() {
			t.Errorf("got %.100s…, want %.100s…", got, want.String())
		}
	}
}

// Payloads are copied twice on their way into the statement, into its text and into a string.
//
//nolint:paralleltest // It measures the memory of the whole process.
func TestManyLargeEventsTakeLittleMoreMemoryToWriteThanTheirHexTwice(t *testing.T) {
	messages := make([]outbox.Message, 100)
	for i := range messages {
		messages[i] = outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: []byte("k"), Payload: make([]byte, 10_000)}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := appendSQL(messages); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	if most := uint64(len(messages) * 45_000); allocated > most {
		t.Errorf("%d bytes were allocated for 100 payloads of 10,000, want at most %d: their hex, twice, and a little", allocated, most)
	}
}
