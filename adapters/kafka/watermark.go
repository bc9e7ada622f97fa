package kafka

import "sync"

// watermark is the offset of a partition below which everything is settled:
// what may be committed. It never falls, except by an explicit reset, and never
// passes a message that is not settled.
//
// Lanes settle their own messages in order. So the lowest unsettled offset of
// the partition is the least of the lanes' first ones, and where no lane has
// any, the end of what was handed out.
type watermark struct {
	mu      sync.Mutex
	handed  int64     // everything below was handed to a lane, or needs none
	pending [][]int64 // by lane: handed and not settled, ascending
	resets  int
}

// unlocated is the position of a partition before its first offset is known.
const unlocated = -1

func newWatermark(lanes int) *watermark {
	return &watermark{handed: unlocated, pending: make([][]int64, lanes)}
}

// hand records that offsets[i] go to lane i, and that everything below next
// went to some lane or needs none.
func (w *watermark) hand(offsets [][]int64, next int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for lane, more := range offsets {
		if len(w.pending[lane]) == 0 {
			w.pending[lane] = more
		} else {
			w.pending[lane] = append(w.pending[lane], more...)
		}
	}
	w.handed = next
}

// settle records that the first n unsettled messages of the lane are settled.
func (w *watermark) settle(lane, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[lane] = w.pending[lane][n:]
}

// reset moves the place to read from forward, past what the log has lost.
func (w *watermark) reset(next int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handed = next
	w.resets++
}

// rewind moves it in either direction, once no lane has anything pending; until
// then it returns false. Pending offsets must ascend: behind a higher one that
// is left over, the watermark would pass what is handed out next.
func (w *watermark) rewind(next int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pending {
		if len(p) > 0 {
			return false
		}
	}
	w.handed = next
	w.resets++
	return true
}

// position returns the watermark, and how often it was reset.
func (w *watermark) position() (offset int64, resets int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset = w.handed
	for _, p := range w.pending {
		if len(p) > 0 {
			offset = min(offset, p[0])
		}
	}
	return offset, w.resets
}

// unsettled returns how many messages were handed out and are not settled.
func (w *watermark) unsettled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, p := range w.pending {
		n += len(p)
	}
	return n
}
