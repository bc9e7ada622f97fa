package kafka

import (
	"math/rand/v2"
	"testing"
)

// K2: whatever the lanes do, the position never falls and never passes an offset that is not settled; when all is
// settled it is the end.
func TestK2WatermarkNeverPassesAnUnsettledOffset(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		lanes := 1 + random.IntN(5)
		w := newWatermark(lanes)
		next, last := random.Int64N(100), int64(unlocated)
		queued := make([][]int64, lanes)
		unsettled := make(map[int64]bool)
		check := func() {
			t.Helper()
			position, _ := w.position()
			if position < last {
				t.Fatalf("seed %d: fell from %d to %d", seed, last, position)
			}
			last = position
			for offset := range unsettled {
				if offset < position {
					t.Fatalf("seed %d: position %d, %d is not settled", seed, position, offset)
				}
			}
			if w.unsettled() != len(unsettled) {
				t.Fatalf("seed %d: %d unsettled, want %d", seed, w.unsettled(), len(unsettled))
			}
		}
		for range 60 {
			if random.IntN(2) == 0 {
				offsets := make([][]int64, lanes)
				for range random.IntN(10) {
					next += random.Int64N(3) // compaction and markers leave gaps
					lane := random.IntN(lanes)
					offsets[lane] = append(offsets[lane], next)
					queued[lane] = append(queued[lane], next)
					unsettled[next] = true
					next++
				}
				w.hand(offsets, next)
			} else if lane := random.IntN(lanes); len(queued[lane]) > 0 {
				n := 1 + random.IntN(len(queued[lane]))
				for _, offset := range queued[lane][:n] {
					delete(unsettled, offset)
				}
				queued[lane] = queued[lane][n:]
				w.settle(lane, n)
			}
			check()
		}
		for lane := range lanes {
			w.settle(lane, len(queued[lane]))
		}
		clear(unsettled)
		check()
		if last != next && last != unlocated {
			t.Fatalf("seed %d: all is settled at %d, position %d", seed, next, last)
		}
	}
}

// K8, K2: the position goes back only when nothing is pending: behind a higher offset that is left over, the watermark
// would pass what is read again. It counts, so that the committer commits it although it is lower.
func TestK8RewindWaitsForWhatIsPending(t *testing.T) {
	t.Parallel()
	w := newWatermark(2)
	w.hand([][]int64{nil, {500, 501}}, 502)
	if w.rewind(0) {
		t.Fatal("rewound behind pending offsets")
	}
	if position, resets := w.position(); position != 500 || resets != 0 {
		t.Errorf("position %d after %d resets", position, resets)
	}
	w.settle(1, 2)
	if !w.rewind(0) {
		t.Fatal("nothing is pending, and it does not rewind")
	}
	w.hand([][]int64{{0}, {1}}, 2)
	if position, resets := w.position(); position != 0 || resets != 1 {
		t.Errorf("position %d after %d resets, while 0 is not settled", position, resets)
	}
}
