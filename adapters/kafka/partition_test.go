package kafka

import (
	"errors"
	"slices"
	"testing"

	"github.com/onceward/onceward/inbox"
)

// A row of failures is said once, but a corrupt batch in it is said in its own right, once: the failure before it heals by
// itself, and this one does not.
func TestCorruptBatchIsSaidAfterAnotherFailure(t *testing.T) {
	t.Parallel()
	var log eventLog
	r := retrying{partition: &partition{topic: "orders", events: log.reporter()}}
	for _, err := range []error{errors.New("connection refused"), errCorrupt, errors.New("connection refused"), errCorrupt} {
		if !r.failed(t.Context(), 7, err) {
			t.Fatal("it gave up")
		}
	}
	r.succeeded(t.Context(), 7)
	r.failed(t.Context(), 9, errCorrupt) // another row
	want := []inbox.EventKind{EventRetry, EventCorrupt, EventRecovered, EventCorrupt}
	if got := log.kinds(); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}
