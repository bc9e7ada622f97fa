package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/onceward/onceward/inbox"
)

const (
	// maxCall is how many messages one call of the inbox gets at most, and
	// firstCall how many the first one gets.
	maxCall   = 1000
	firstCall = 100

	// A call that takes longer than slowCall gets fewer messages next time, so
	// that offsets are committed and a drain ends without cancelling; one
	// shorter than fastCall gets more.
	slowCall = time.Second
	fastCall = 100 * time.Millisecond
)

// lane hands the messages of one partition that fall to it to the inbox, in
// order, one call at a time.
type lane struct {
	partition *partition
	number    int
	pieces    chan piece

	call   int // messages for the next call
	paused time.Time
}

// piece is what falls to a lane of one fetch.
type piece struct {
	messages []inbox.Message
	room     *room
}

// laneRoom is for how many pieces a lane has room. With several lanes each has
// it for one more, so that a slow key does not stop the others at once.
func (c ConsumerConfig) laneRoom() int {
	if c.KeyParallelism > 1 {
		return 1
	}
	return 0
}

// run handles pieces until reading ends. handling is the context of the
// handlers, which outlives reading by the drain.
func (l *lane) run(reading, handling context.Context) {
	for {
		select {
		case <-reading.Done():
			return
		case piece := <-l.pieces:
			if l.handle(reading, handling, piece.messages) {
				piece.room.settled()
			}
		}
	}
}

// handle settles all messages, however long it takes, or stops when reading
// has ended. It returns whether all are settled.
func (l *lane) handle(reading, handling context.Context, messages []inbox.Message) bool {
	var outage backoff
	for len(messages) > 0 && reading.Err() == nil {
		call := messages[:min(l.call, len(messages))]
		started := time.Now()
		results, err := l.partition.processor.Process(handling, call)
		took := time.Since(started)

		settled := 0
		for settled < min(len(results), len(call)) && results[settled].Settled() {
			settled++
		}
		l.resize(len(call), settled, took)
		l.partition.settle(l.number, settled)
		messages = messages[settled:]

		switch {
		case handling.Err() != nil:
			return len(messages) == 0
		case settled == len(call): // with nothing left, an error will come again
			outage.reset()
			l.resume(handling)
		case err == nil && settled < len(results) && results[settled].Outcome == inbox.Failed:
			outage.reset()
			l.resume(handling)
			if !sleep(reading, results[settled].RetryAfter) {
				return false
			}
		default:
			// The database is away, or the inbox decided nothing: nothing is
			// lost and no attempt was spent.
			if err == nil {
				err = errors.New("the inbox decided nothing and gave no reason")
			}
			l.pause(handling, messages, err)
			if !outage.wait(reading) {
				return false
			}
		}
	}
	return len(messages) == 0
}

// resize adapts the next call. One that failed, such as in an outage, was quick
// for another reason than that its messages are.
func (l *lane) resize(called, settled int, took time.Duration) {
	switch {
	case took > slowCall:
		l.call = max(called/2, 1)
	case took < fastCall && called == l.call && settled == called:
		l.call = min(l.call*2, maxCall)
	}
}

// pause and resume report the begin and the end of an outage.
func (l *lane) pause(ctx context.Context, messages []inbox.Message, err error) {
	if !l.paused.IsZero() {
		return
	}
	l.paused = time.Now()
	l.partition.events.report(ctx, inbox.Event{
		Kind: EventPaused, Count: len(messages), Err: err,
		Message: inbox.Message{Topic: l.partition.topic, Position: messages[0].Position, ID: messages[0].ID},
	})
}

func (l *lane) resume(ctx context.Context) {
	if l.paused.IsZero() {
		return
	}
	l.partition.events.report(ctx, inbox.Event{
		Kind: EventResumed, Count: 1, Duration: time.Since(l.paused),
		Message: inbox.Message{Topic: l.partition.topic, Position: fmt.Sprintf("%s/%d", l.partition.topic, l.partition.id)},
	})
	l.paused = time.Time{}
}

var laneSeed = maphash.MakeSeed()

// laneOf chooses a lane. Messages with the same key fall to the same lane for
// as long as the process lives; those without a key are spread.
func laneOf(key []byte, offset int64, lanes int) int {
	if key == nil {
		return int(offset % int64(lanes))
	}
	return int(maphash.Bytes(laneSeed, key) % uint64(lanes))
}
