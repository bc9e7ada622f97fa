package outbox

import (
	"context"
	"time"
)

// OperatorStore is the part of a Store that operations on relays use. A change
// to a lane gives it the next epoch and no owner: whoever owned it takes it
// again, with what was changed. ErrNoRelay: there is no such relay.
type OperatorStore interface {
	// Relays describes all relays. Of each lane at most countLimit events are
	// counted.
	Relays(ctx context.Context, countLimit int) ([]RelayStatus, error)

	// Holders returns what keeps rows of the log invisible, oldest first.
	Holders(ctx context.Context) ([]Holder, error)

	// Replay sets the lanes of a relay back, so that the event with this
	// number and all later ones are published again. What is set aside among them
	// is not any more: it is read again like the others, and what was behind it alone
	// takes its place. What has not been published yet still is, whatever its number.
	// ErrNoEvent: not even the number before was given yet.
	Replay(ctx context.Context, relay string, from int64) error

	// FirstSince returns the number of the first event written at or after t, or
	// one more than the last number.
	FirstSince(ctx context.Context, t time.Time) (int64, error)

	// Skip has the relay pass an event without publishing it, set aside or not.
	// ErrPassed: it is not set aside and its lane has passed it. ErrNoEvent: it is
	// not in the log.
	Skip(ctx context.Context, relay string, number int64) error

	// SetAside lists selected events that are set aside, by number.
	SetAside(ctx context.Context, relay string, filter Filter) ([]AsideEvent, error)

	// Redrive has selected Dead events published again: attempts start at zero.
	// With ParkKey those with a key become Retrying, all others Delayed; both
	// due now. It returns how many there were.
	Redrive(ctx context.Context, relay string, filter Filter) (int, error)

	// Discard gives up selected Dead events, and frees keys that have none
	// left. It returns how many there were.
	Discard(ctx context.Context, relay string, filter Filter) (int, error)

	// ChangeLanes gives a relay another number of lanes, which passes CheckLanes.
	// ErrRunning: an instance has a lease. The new lanes start where the last of the old ones
	// stood, so that some events are published again.
	ChangeLanes(ctx context.Context, relay string, lanes int) error

	// Remove deletes a relay with its positions and all it has set aside.
	// ErrRunning: an instance has a lease.
	Remove(ctx context.Context, relay string) error
}

// RelayStatus describes a relay.
type RelayStatus struct {
	Registration

	Instances []Instance
	Status    []LaneStatus
	// SeenAt is when an instance last prolonged a lease.
	SeenAt time.Time
}

// Instance is a process that runs a relay.
type Instance struct {
	Name string
	// Lease is how long its lease still lasts. Negative: it is over.
	Lease time.Duration
}

// LaneStatus describes a lane.
type LaneStatus struct {
	Lane  int
	Owner string // empty: nobody's
	Epoch int64
	// Events of the relay's topics that are committed and not passed yet, at
	// most countLimit, and the age of the oldest one.
	Events int
	Age    time.Duration
	// Aside counts what is set aside in the lane.
	Aside map[State]int
	// HeldBy is the event that the lane waits for (Retrying under BlockLane), 0 if there is none.
	HeldBy int64
}

// Holder is a transaction that has written and is still open, in any database of
// the cluster. Its own events are published when it ends; no others wait for it.
type Holder struct {
	// PID is the server process; 0 for a prepared transaction, which has a GID.
	PID                         int
	GID                         string
	Database, User, Application string
	// State as PostgreSQL names it: active, idle in transaction, prepared, …
	State string
	Since time.Time
}

// AsideEvent is an event that is set aside.
type AsideEvent struct {
	Event Event
	Aside Aside

	// Due is when it is tried, zero if not by itself.
	Due time.Time
	// SetAsideAt is when it was set aside.
	SetAsideAt time.Time
}

// Filter selects events that are set aside. Conditions are joined by "and"; the
// zero Filter selects all of them.
type Filter struct {
	// Numbers selects by number; nil: any, empty: none.
	Numbers []int64
	// After selects larger numbers only: with Limit, it reads page by page.
	After     int64
	State     State
	Topic     string // exact, no pattern
	MessageID string
	// Limit bounds how many are selected, lowest number first. Zero: 1,000 in a
	// list; Redrive and Discard then go on until none is left. Stores always get
	// a positive one.
	Limit int
	// Brief leaves out what a list has no use for and can be large: Payload
	// and Headers are nil then.
	Brief bool
}
