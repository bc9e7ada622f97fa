package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store is what an Outbox and its relays need from a database, over its
// transaction type. Package store/storetest holds the conformance suite that every Store
// passes. Errors are, or wrap, the sentinels of package idempotency
// (ErrUnavailable, ErrNotMigrated, …) and of this package.
type Store[Tx any] interface {
	RelayStore

	// Append writes events to the log in tx, in their order and in one
	// statement, and raises Appended. The messages are valid; with headers as the store
	// writes them, an event may still be more than CheckSize takes, and is refused. If tx
	// has ended, the error says so; the cause is the driver's. ErrRestored: the log was
	// restored into another cluster and is not adopted yet.
	Append(ctx context.Context, tx Tx, messages []Message) error
}

// RelayStore is the part of a Store that relays use. Each method is one short
// transaction of its own; none is open between calls.
type RelayStore interface { //nolint:interfacebloat // one method for each thing a relay does
	OperatorStore

	// Check returns nil if the store answers and its schema is current.
	Check(ctx context.Context) error

	// Appended is raised by Append and may be raised by whoever knows more.
	Appended() *Signal

	// Register creates the relay and its lanes if there is no such relay, else
	// compares the settings with those recorded: ErrSettings names what
	// differs. It also refuses a log that cannot be read in order (ErrLog), and
	// adopts one that was restored into another cluster. Lanes that fail
	// CheckLanes are refused.
	Register(ctx context.Context, r Registration) error

	// Lease prolongs the instance's lease and takes free lanes for it, up to
	// its share: lanes without an owner, and those whose owner's lease is over.
	// A lane that is taken gets the next epoch. ErrNoRelay: it was removed.
	// ErrRestored: Register it again.
	// ErrSettings: its lanes, topics or policy are not those that this store has
	// registered it with, as those of an instance that was frozen while they changed. A
	// lease that fails CheckLease is refused.
	Lease(ctx context.Context, relay, instance string, lease time.Duration) (Lease, error)

	// Leave ends the instance's lease and frees its lanes.
	Leave(ctx context.Context, relay, instance string) error

	// Held returns what is set aside in the lanes and has a say in what may be
	// published: Retrying and Skipped events, with ParkKey one for each key that has
	// Retrying, Behind or Dead ones, and in whatever state those that are Ahead.
	// Each event comes once. Attempts and Error may be left out, and with BlockLane one
	// for each key may come as well.
	Held(ctx context.Context, relay string, lanes []int) ([]Aside, error)

	// Read returns the next events of the lanes, all of which stand at Position. Here
	// and elsewhere, what fails CheckSize is not read, and comes Invalid.
	Read(ctx context.Context, r ReadRequest) (Chunk, error)

	// Due returns events of the lanes that are Delayed or Retrying and due,
	// oldest due first. Behind a Retrying one come those that are Behind it, in
	// order.
	Due(ctx context.Context, relay string, lanes []int, limit, maxBytes int) (Due, error)

	// Settle saves what was done, in one transaction. Of a lane whose epoch is
	// not the recorded one nothing is saved: it is lost. What was saved already may be
	// saved again under its epoch, with more, and ends the same; a lane
	// that was released is lost then.
	Settle(ctx context.Context, s Settlement) (Settled, error)

	// PruneLog is one step of a pass over the log, in one short transaction. It
	// looks at the events with numbers above after, oldest first and at most limit
	// of them, and deletes those that every relay has passed, that none has set
	// aside, and that are older than the longest Retention of the relays. What must
	// stay keeps nothing else: the next step goes on behind it. A pass ends with
	// the log, and at events that are all too young, but not at those of a clock that
	// was ahead of what it is now. If another PruneLog is
	// at work anywhere on this store it looks at nothing. A relay of which no
	// instance has had a lease for longer than abandonAfter holds up nothing but what
	// it has set aside, and is reported. Times in which no relay of the log had one
	// do not count, and a Register is as good as a lease.
	PruneLog(ctx context.Context, after int64, limit int, abandonAfter time.Duration) (Pruned, error)
}

// Errors of a store.
var (
	// ErrSettings: a relay of this name was registered with other settings.
	ErrSettings = errors.New("relay is registered with other settings")
	// ErrLog: the log cannot be read in order, as with a sequence that caches.
	ErrLog = errors.New("log cannot be read in order")
	// ErrNoRelay: no relay of this name is registered.
	ErrNoRelay = errors.New("relay is not registered (its first Run does that; Status lists those there are)")
	// ErrRunning: an instance of the relay has a lease.
	ErrRunning = errors.New("relay is running")
	// ErrPassed: the relay has passed the event, and has it not set aside.
	ErrPassed = errors.New("event was passed already")
	// ErrNoEvent: no event in the log has this number: it was not given yet, or its
	// event was pruned, rolled back, or is not committed.
	ErrNoEvent = errors.New("no such event in the log")
	// ErrRestored: the log was restored into another cluster and was not
	// adopted yet; nothing is written until then.
	ErrRestored = errors.New("log was restored from another cluster")
)

// CheckLease returns what is wrong with a lease that a store is asked for. Shares are
// counted over leases that last, and none shorter than a tick of the store's clock does.
func CheckLease(lease time.Duration) error {
	const least = time.Millisecond
	if lease < least {
		return fmt.Errorf("lease is %v: use at least %v, and mind that a plain number counts nanoseconds", lease, least)
	}
	return nil
}

// CheckLanes returns what is wrong with a relay's number of lanes. A store that
// recorded none would divide by it.
func CheckLanes(lanes int) error {
	if lanes < 1 || lanes > maxLanes {
		return fmt.Errorf("lanes is %d: use 1 to %d", lanes, maxLanes)
	}
	return nil
}

// Registration is what all instances of a relay have in common.
type Registration struct {
	Relay string
	Lanes int
	// Topics are patterns, see RelayConfig.Topics, sorted and without repeats.
	Topics []string
	Policy Policy
	// Retention is how long events stay at least, from when they were written.
	Retention time.Duration
	// FromNow: a relay that is created starts behind what is committed now,
	// not at the start of the log.
	FromNow bool
}

// Lease is what an instance owns.
type Lease struct {
	// Lanes are all it owns.
	Lanes []OwnedLane
	// Share is how many it should own. Of more, it releases the rest by Settle.
	Share int
	// Due is when the first Delayed or Retrying event of its lanes is due, from
	// now on. Negative: there is none.
	Due time.Duration
}

// OwnedLane is a lane of an instance.
type OwnedLane struct {
	Lane     int
	Epoch    int64
	Position Position
}

// ReadRequest asks for events.
type ReadRequest struct {
	Relay string
	// Lanes of AllLanes, a relay's lanes in number; all of them stand at Position.
	Lanes    []int
	AllLanes int
	// Topics are the patterns of the relay.
	Topics   []string
	Position Position
	// Until is the End of a window that was opened after the one whose End
	// Position is: the window ends there instead of now, so that two groups of
	// lanes meet. Zero: now. Ignored while a window is open.
	Until Position
	// Limit and MaxBytes, of the sum of Event.Size, bound the events; one event is
	// always returned.
	Limit, MaxBytes int
}

// Chunk is what Read returns.
type Chunk struct {
	// Events in the order of their numbers.
	Events []Event
	// Window is the position in the window that they belong to: Behind of it
	// is the position right behind one of them.
	Window Position
	// End is the position behind all of them. It equals the request's Position
	// if there was nothing at all to pass.
	End Position
	// More: there may be more to read at once.
	More bool
}

// Due is what was set aside and is to be published now.
type Due struct {
	Events []Event
	// Asides are those of the events, in their order.
	Asides []Aside
	// Next is when the next one is due, from now on. Negative: there is none.
	Next time.Duration
}

// Settlement is what an instance has done.
type Settlement struct {
	Relay, Instance string
	Lanes           []LaneProgress
	// Aside are set aside, or changed if they are already; all in Lanes.
	Aside []Aside
	// Done were set aside and are gone now; all in Lanes. Of a key whose first
	// event goes, the first one Behind becomes Retrying and due.
	Done []Aside
}

// LaneProgress is the new position of a lane. Release frees the lane.
type LaneProgress struct {
	OwnedLane

	Release bool
}

// Settled is the result of Settle.
type Settled struct {
	// Lost lanes: nothing of theirs was saved.
	Lost []int
	// Freed are the KeyHashes among Done of which nothing is Retrying, Behind or
	// Dead any more.
	Freed []string
}

// Pruned is the result of PruneLog.
type Pruned struct {
	// Events were deleted, of those Looked at.
	Events, Looked int
	// Next is the after of the pass's next step, if this one was not the last. If
	// nothing was looked at because another PruneLog is at work, it is the same again.
	Next int64
	// Abandoned are the relays that were passed over, see PruneLog.
	Abandoned []string
}
