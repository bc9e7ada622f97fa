package postgres

import (
	"context"
	"sync"
)

// floors knows where a scan for new rows may begin: a floor of a snapshot S is a number
// below which, itself included, no transaction that began after S writes a row.
//
// A transaction is new to S if its number is at least xmax(S). The floor is found so:
//
//	1  L is read, the last number that the sequence has given
//	2  a transaction of ours gets its number X, and commits
//	3  S is taken
//
// L is a floor of S, and of every later snapshot. For X has ended when S is taken, so
// that X < xmax(S), and a transaction Y that is new to S has a larger number than X. Those numbers are
// given in order: Y got its own after step 2 began. The default of outbox.number has a
// transaction take its own number before an event's, also if it has none yet and a
// trigger sleeps in between: Y drew its events' numbers after that. The sequence only
// counts up, and gives what it has counted at once, with CACHE 1: they are larger than L.
//
// Without step 2, X would be some transaction that ended before L was read, and Y could be
// one that got its number between the two, drew its events' and has not ended: S does not see
// it, and its events are not above L. Nothing but xmax tells of Y then, and xmax is one more
// than the last number that has ended, not the next one to be given.
//
// L must not be read in the statement that has the number X: the statement may look again at
// a row that it had to wait for, and read the sequence again with it, when it has X already.
//
// None of this costs a statement. Each Read brings L, each Settle has a number, and each
// Read that opens a window takes a snapshot:
//
//	observe    a Read has seen L
//	settling   a Settle begins; what was observed until now …
//	settled    … is a floor, once it has committed
//	confirmed  of every snapshot that is taken from now on
//
// What is known of a server does not hold for another, nor for one that has
// forgotten its last commits: restart forgets it all. It is called when an instance's
// lease is new, since the table of leases does not outlive a crash (see Lease).
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

const lastNumberSQL = `SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s`

// lastNumber is the last one that was given, to whatever transaction.
func (d *Database[Tx]) lastNumber(ctx context.Context, r runner) (last int64, err error) {
	err = r.query(ctx, query{d.sql(lastNumberSQL), nil, func(row scanner) error { return row.Scan(&last) }})
	return last, err
}

// takeXactIDSQL gives the transaction a number, which completes at its commit.
const takeXactIDSQL = `SELECT pg_catalog.pg_current_xact_id()::text`

// safeFloor returns a floor for every snapshot that is taken after it
// returns.
func (d *Database[Tx]) safeFloor(ctx context.Context) (floor int64, err error) {
	err = d.inTransaction(ctx, "find the end of the log", func(ctx context.Context, r runner) (err error) {
		if floor, err = d.lastNumber(ctx, r); err != nil {
			return err
		}
		return r.query(ctx, query{takeXactIDSQL, nil, func(row scanner) error { return row.Scan(new(string)) }})
	})
	return floor, err
}

// startFloors forgets what was known, and finds out how far the log goes: a first window
// that ends without a floor would be followed by one that looks at all its rows again.
func (d *Database[Tx]) startFloors(ctx context.Context) {
	d.floors.restart()
	began := d.floors.confirmed()
	// Without it, the next Settle finds one.
	if floor, err := d.safeFloor(ctx); err == nil {
		d.floors.settled(floorClaim{began.generation, floor})
	}
}
