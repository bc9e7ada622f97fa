package kafka

import (
	"sync"
	"sync/atomic"
)

// room is the array that an answer is received in. Once all messages that lie in
// it are settled it is received in again: a new array for each answer cost a
// third of the CPU time of reading, for clearing and collecting it.
type room struct {
	bytes  []byte
	pieces atomic.Int32 // that are not settled
	home   *rooms       // nil: not worth coming back to
}

// rooms are the free ones of a generation. What nobody takes for a while goes to
// the garbage collector, and so does a room whose messages are never settled:
// what a call of the inbox may still read is not overwritten.
type rooms struct{ free sync.Pool }

// minRoom is the smallest answer that is received in a used room. A smaller one
// must not occupy a large room while its handlers run.
const minRoom = 64 << 10

// maxSlack is how many times as large as its answer a used room may be. One that
// held a single huge record would stay in use for good otherwise, by answers that
// need a hundredth of it, and BufferBytes would bound nothing.
const maxSlack = 4

func (r *rooms) take(size int) *room {
	if size < minRoom {
		return &room{bytes: make([]byte, size)}
	}
	if used, ok := r.free.Get().(*room); ok && cap(used.bytes) >= size && cap(used.bytes)/maxSlack <= size {
		used.bytes = used.bytes[:size]
		return used
	}
	return &room{bytes: make([]byte, size), home: r}
}

// hold notes how many pieces the messages of the room were split into.
func (r *room) hold(pieces int) {
	if r.pieces.Add(int32(pieces)) == 0 {
		r.leave()
	}
}

// settled notes that all messages of a piece are.
func (r *room) settled() {
	if r.pieces.Add(-1) == 0 {
		r.leave()
	}
}

func (r *room) leave() {
	if r.home != nil {
		r.home.free.Put(r)
	}
}
