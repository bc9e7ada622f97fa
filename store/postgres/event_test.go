package postgres

import (
	"strconv"
	"testing"

	"github.com/onceward/onceward/outbox"
)

func TestBoundsInStatementsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	if maxContent != strconv.Itoa(outbox.MaxEventBytes) || keptText != strconv.Itoa(alongBytes) {
		t.Errorf("statements say %s and %s", maxContent, keptText)
	}
	const unpacked = 255 // times, at most
	if most := 2*maxAlongBytes + unpacked*maxPackedBytes; most > outbox.MaxEventBytes {
		t.Errorf("%d bytes may come along", most)
	}
}
