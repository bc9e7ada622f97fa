package postgres

import "sync"

// floors knows a number below which no row of a future transaction lies. See
// window.go for why.
//
//	observe    a Read has seen that this was the last number given
//	settling   what was observed before a Settle began …
//	settled    … is confirmed once it has committed
//	confirmed  a floor for every snapshot that is taken from now on
//
// What is known of a server does not hold for another, nor for one that has
// forgotten its last commits: restart forgets it all. It is called when an instance's
// lease is new, since the table of leases does not outlive a crash (see lease.go).
type floors struct {
	mu         sync.Mutex
	generation int
	last, sure int64
}

// floorClaim is what a call began with.
type floorClaim struct {
	generation int
	number     int64
}

// confirmed is asked before a snapshot is taken.
func (f *floors) confirmed() floorClaim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return floorClaim{f.generation, f.sure}
}

func (f *floors) observe(began floorClaim, last int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.generation == began.generation {
		f.last = max(f.last, last)
	}
}

func (f *floors) settling() floorClaim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return floorClaim{f.generation, f.last}
}

func (f *floors) settled(began floorClaim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.generation == began.generation {
		f.sure = max(f.sure, began.number)
	}
}

func (f *floors) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	f.last, f.sure = 0, 0
}
