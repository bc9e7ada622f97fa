package kafka

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// settler settles every message and returns an error all the same.
type settler struct{ err error }

func (settler) Check(context.Context) error { return nil }
func (settler) Maintain(context.Context)    {}

func (s settler) Process(_ context.Context, messages []inbox.Message) ([]inbox.Result, error) {
	results := make([]inbox.Result, len(messages))
	for i := range results {
		results[i].Outcome = inbox.Duplicate
	}
	return results, s.err
}

func newLane(processor inbox.Processor, log *eventLog) *lane {
	p := &partition{
		topic: "orders", processor: processor, events: log.reporter(), mark: newWatermark(1),
		commits: &committer{wake: make(chan struct{}, 1)},
	}
	return &lane{partition: p, call: firstCall}
}

// An error beside results that settle everything, such as a context that ended a moment too late, is no outage: there is
// no message left that could wait for its end.
func TestAllSettledWithAnErrorIsSettled(t *testing.T) {
	t.Parallel()
	var log eventLog
	l := newLane(settler{errors.New("the connection was lost while it was closed")}, &log)
	messages := make([]inbox.Message, 3)
	l.partition.mark.hand([][]int64{{7, 8, 9}}, 10)
	if !l.handle(t.Context(), t.Context(), messages) {
		t.Error("it says that something is left")
	}
	if offset, _ := l.partition.mark.position(); offset != 10 {
		t.Errorf("the watermark is %d, want 10", offset)
	}
	if kinds := log.kinds(); len(kinds) > 0 {
		t.Errorf("events %v", kinds)
	}
}

// What is left when reading ends is not settled, so nobody may overwrite its bytes.
func TestLaneThatIsStoppedKeepsItsRoom(t *testing.T) {
	t.Parallel()
	l := newLane(settler{}, new(eventLog))
	l.partition.mark.hand([][]int64{{0}}, 1)
	ended, end := context.WithCancel(t.Context())
	end()
	if l.handle(ended, t.Context(), make([]inbox.Message, 1)) {
		t.Error("a message that no call got is settled")
	}
}

// Calls grow only while they settle what they are given: one that fails at once
// in an outage says nothing about how long its messages take.
func TestCallsGrowOnlyOnSuccess(t *testing.T) {
	t.Parallel()
	l := &lane{call: firstCall}
	l.resize(firstCall, 0, time.Millisecond)
	if l.call != firstCall {
		t.Errorf("%d after a call that failed", l.call)
	}
	l.resize(firstCall, firstCall, time.Millisecond)
	if l.call != 2*firstCall {
		t.Errorf("%d after a quick call", l.call)
	}
	l.resize(l.call, l.call, 2*slowCall)
	if l.call != firstCall {
		t.Errorf("%d after a slow call", l.call)
	}
}
