package outbox

import (
	"log/slog"
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
	// Name, Lanes, Topics, Policy and Retention.
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
	// most. Default 10 s, at least 1 s. It is prolonged every third of it.
	Lease time.Duration

	// Poll is the longest pause between two looks at a log without new events,
	// and so the latency of the first event after a pause, if another process
	// committed it. Default 1 s, at least 1 ms. While events come, and after a Publish in
	// this process, a relay looks every few milliseconds.
	Poll time.Duration

	// Batch is how many events are read and published at a time, at most.
	// Default 1,000. BatchBytes bounds their bytes. Default 4 MiB.
	Batch, BatchBytes int

	// PublishTimeout bounds one call of the publisher. Default 30 s.
	PublishTimeout time.Duration

	// StopTimeout bounds the clean stop after ctx of Run has ended: calls of the
	// publisher that are under way go on until then. Default 10 s.
	StopTimeout time.Duration

	// Retention is how long events stay in the log at least, for replays, after
	// every relay has published them. Default 24 h. The longest one of all
	// relays counts. Events that are set aside stay as long as they are.
	Retention time.Duration

	// AbandonAfter is after what time without any running instance a relay
	// does not keep events in the log any more. Default 7 days.
	AbandonAfter time.Duration

	// Logger gets what is worth a person's attention. Default slog.Default().
	Logger *slog.Logger

	// OnNotice is called for every notice, synchronously: it must return
	// quickly and be safe for concurrent use. If it panics, that is logged, nothing else.
	OnNotice func(Notice)
}
