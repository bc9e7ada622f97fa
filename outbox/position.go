package outbox

// Position is how far a lane was handled. Relays compare positions, and set Last
// (see Behind); all else is the store's own. The zero Position is the start of
// the log.
type Position struct {
	// Seen is a snapshot: what is visible in it is handled. Empty: nothing is,
	// or the store needs no snapshots.
	Seen string

	// Floor is a number below which, itself included, there is no row that was
	// written by a transaction younger than Seen.
	Floor int64

	// Target is the snapshot that the open window is read up to, and
	// TargetFloor its floor. Empty: no window is open.
	Target      string
	TargetFloor int64

	// Last is the number up to which the open window was handled.
	Last int64

	// Replay is one more than the number after which everything is handled
	// again, visible in Seen or not. Zero: nothing is.
	Replay int64
}

// Behind is the position behind an event of a chunk whose Window is p.
func (p Position) Behind(e Event) Position {
	p.Last = e.Number
	return p
}
