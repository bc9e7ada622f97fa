package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"time"
)

// Policy says whom an event holds up that could not be published.
type Policy string

const (
	// BlockLane: later events of its lane wait until it is published or dead.
	// The default. Events of the same key are in order up to a dead letter,
	// which later ones overtake.
	BlockLane Policy = "block_lane"
	// ParkKey: later events of its topic and key are set aside behind it, until
	// it is published, also after a redrive, or discarded. Others go on.
	ParkKey Policy = "park_key"
)

// RelayConfig configures a Relay. Zero values are the defaults.
type RelayConfig struct {
	// Name identifies the relay and its positions; it must match
	// [A-Za-z0-9._-]{1,100}. Required. All instances of a relay have the same
	// Name, Lanes, Topics, Policy and Retention, and publish to the same place: an event
	// goes through one of them only.
	Name string

	// Topics are the topics that this relay publishes: patterns in which each *
	// stands for any number of any characters. Empty: all.
	Topics []string

	// Lanes is how many instances can share the work, 1 to 1,024. Default 16.
	// It is recorded at the first start; Operator.ChangeLanes changes it.
	Lanes int

	// FromNow: a relay that is started for the first time leaves out what was
	// committed before. Default: it starts with the oldest event of the log.
	FromNow bool

	// Policy says whom a failed event holds up. Default BlockLane.
	Policy Policy

	// MaxAttempts is after how many failed attempts an event is set aside as a
	// dead letter. Default 10. Outages of a destination spend none.
	MaxAttempts int

	// BackoffMin and BackoffMax bound the pause after a failed attempt, and
	// while a destination is unavailable: full jitter, doubled each time.
	// Default 100 ms and 30 s.
	BackoffMin, BackoffMax time.Duration

	// Lease is how long the lanes of an instance that died stay unpublished, at
	// most. Default 10 s, at least 1 s. Three quarters of it are leased, and prolonged
	// every quarter, so that others notice in time.
	Lease time.Duration

	// Poll is the longest pause between two looks at a log without new events,
	// and so the latency of the first event after a pause, if another process
	// committed it. Default 1 s, at least 1 ms. While events come, and after a Publish in
	// this process, a relay looks every few milliseconds.
	Poll time.Duration

	// Batch is how many events are read and published at a time, at most. Default
	// 8,000: behind, a relay is half as fast again as with 1,000, and no slower in step.
	// BatchBytes bounds their bytes. Default 4 MiB. Twice as much is in memory, and comes
	// again after a crash.
	Batch, BatchBytes int

	// PublishTimeout bounds one call of the publisher. Default 30 s.
	PublishTimeout time.Duration

	// StopTimeout is how long calls of the publisher that are under way go on after
	// ctx of Run has ended. Default 10 s. A publisher that heeds no context adds a second, a
	// store that hangs up to 40 s.
	StopTimeout time.Duration

	// Retention is how long events stay in the log at least, for replays, counted
	// from when they were written. Default 24 h. The longest one of all
	// relays counts. What a relay has yet to publish or has set aside stays as long as that
	// lasts, and may be gone soon after: what was published late, after an outage for
	// one, is not kept for longer.
	Retention time.Duration

	// AbandonAfter is after what time without any running instance a relay
	// does not keep events in the log any more. Default 7 days. Times in which no relay
	// of the log ran do not count.
	AbandonAfter time.Duration

	// Logger gets what is worth a person's attention. Default slog.Default().
	Logger *slog.Logger

	// OnNotice is called for every notice, synchronously: it must return
	// quickly and be safe for concurrent use. If it panics, that is logged, nothing else.
	OnNotice func(Notice)
}

var relayName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// maxLanes is how many a relay can have: far more than instances are of use.
const maxLanes = 1024

// withDefaults returns a copy in which every zero value is filled in, and topics
// are sorted and without repeats, as they are recorded.
func (c RelayConfig) withDefaults() RelayConfig {
	setDefault(&c.Lanes, 16)
	setDefault(&c.Policy, BlockLane)
	setDefault(&c.MaxAttempts, 10)
	setDefault(&c.BackoffMin, 100*time.Millisecond)
	setDefault(&c.BackoffMax, max(30*time.Second, c.BackoffMin))
	setDefault(&c.Lease, 10*time.Second)
	setDefault(&c.Poll, time.Second)
	setDefault(&c.Batch, 8000)
	setDefault(&c.BatchBytes, 4<<20)
	setDefault(&c.PublishTimeout, 30*time.Second)
	setDefault(&c.StopTimeout, 10*time.Second)
	setDefault(&c.Retention, 24*time.Hour)
	setDefault(&c.AbandonAfter, 7*24*time.Hour)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Topics = slices.Compact(slices.Sorted(slices.Values(c.Topics)))
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports every field that cannot work, each with its fix. The config has
// its defaults.
func (c RelayConfig) validate(hasStore bool, publisher Publisher) error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("outbox: "+format, args...))
	}
	if !hasStore {
		problem("store is nil: pass one, such as postgres.New(pool)")
	}
	if publisher == nil {
		problem("publisher is nil: pass one, such as kafka.NewPublisher")
	}
	if v, ok := publisher.(validator); ok {
		problems = append(problems, v.Validate())
	}
	if !relayName.MatchString(c.Name) {
		problem("Name of %d bytes does not match [A-Za-z0-9._-]{1,100}: name the relay, such as %q", len(c.Name), "events")
	}
	if err := validatePatterns("Topics", c.Topics); err != nil {
		problems = append(problems, err)
	}
	if c.Policy != BlockLane && c.Policy != ParkKey {
		problem("Policy is %.20q: use BlockLane or ParkKey", c.Policy)
	}
	for _, n := range []struct {
		name       string
		value      int
		min, max   int
		suggestion string
	}{
		{"Lanes", c.Lanes, 1, maxLanes, "16"},
		{"MaxAttempts", c.MaxAttempts, 1, math.MaxInt, "10"},
		{"Batch", c.Batch, 1, 1_000_000, "8,000"},
		{"BatchBytes", c.BatchBytes, 1, 1 << 30, "4 MiB"},
	} {
		if n.value < n.min || n.value > n.max {
			problem("%s is %d: use %d to %d, or 0 for %s", n.name, n.value, n.min, n.max, n.suggestion)
		}
	}
	// The lower bounds catch forgotten units: 30 is 30 nanoseconds.
	for _, d := range []struct {
		name       string
		value, min time.Duration
	}{
		{"BackoffMin", c.BackoffMin, time.Millisecond},
		{"BackoffMax", c.BackoffMax, c.BackoffMin},
		{"Lease", c.Lease, time.Second},
		{"Poll", c.Poll, time.Millisecond},
		{"PublishTimeout", c.PublishTimeout, time.Millisecond},
		{"StopTimeout", c.StopTimeout, time.Millisecond},
		{"Retention", c.Retention, time.Second},
		{"AbandonAfter", c.AbandonAfter, c.Lease},
	} {
		if d.value < d.min {
			problem("%s is %v: use at least %v, or 0 for the default", d.name, d.value, d.min)
		}
	}
	return errors.Join(problems...)
}
