package kafka

import (
	"testing"
)

// An array is received in again only when all pieces of its messages are settled.
func TestRoomIsTakenAgainOnlyWhenAllIsSettled(t *testing.T) {
	t.Parallel()
	var free rooms
	first := free.take(minRoom)
	first.hold(2)
	first.settled()
	for range 100 { // a pool may keep back what it has, but not for so long
		if other := free.take(minRoom); &other.bytes[0] == &first.bytes[0] {
			t.Fatal("the array was taken while a piece of it was not settled")
		}
	}
	first.settled()
	if got := first.pieces.Load(); got != 0 {
		t.Errorf("%d pieces are left", got)
	}
	arrays := make(map[*byte]bool)
	const answers = 100
	for range answers {
		r := free.take(minRoom)
		arrays[&r.bytes[0]] = true
		r.hold(0)
	}
	if len(arrays) == answers { // with the race detector a pool loses some of what it gets
		t.Errorf("%d answers came in as many arrays", answers)
	}
}

// A small answer doesn't occupy a large room, and a large one gets all it needs.
func TestRoomFitsItsAnswer(t *testing.T) {
	t.Parallel()
	var free rooms
	used := free.take(minRoom)
	used.hold(0) // an answer without messages: free at once
	if small := free.take(100); len(small.bytes) != 100 || cap(small.bytes) > 1000 {
		t.Errorf("100 bytes lie in %d of %d", len(small.bytes), cap(small.bytes))
	}
	if large := free.take(3 * minRoom); len(large.bytes) != 3*minRoom {
		t.Errorf("%d bytes, want %d", len(large.bytes), 3*minRoom)
	}
	huge := free.take(100 * minRoom)
	huge.hold(0)
	for range 10 {
		after := free.take(minRoom)
		if cap(after.bytes) > maxSlack*minRoom {
			t.Fatalf("%d bytes lie in %d after a huge answer", len(after.bytes), cap(after.bytes))
		}
		after.hold(0)
	}
	small := free.take(10)
	small.hold(1)
	small.settled() // it has no home to go to
}
