package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/onceward/onceward/inbox"
)

// ConsumerConfig says what to read and how. Brokers, Group and Topics are
// required; every other zero value is a default that works.
type ConsumerConfig struct {
	// Brokers are "host:port" addresses to start from; the rest of the cluster
	// is discovered.
	Brokers []string

	// Group is the consumer group: members of one group share the partitions.
	// It can't be shared with Java clients; see the package documentation.
	Group string

	// Topics must exist when Consume starts. Partitions added later, and
	// topics deleted and made again, are picked up.
	Topics []string

	// TLS turns on TLS. Nil: plain text.
	TLS *tls.Config

	// SASL is the authentication, from kafka-go's packages sasl/plain and
	// sasl/scram. Nil: none.
	SASL sasl.Mechanism

	// StartAt is where a group begins that has no committed offset.
	// Zero: StartFirst.
	StartAt StartAt

	// Isolation is which records are delivered. Zero: ReadCommitted.
	Isolation Isolation

	// Identity says where the ID of a message is found. The zero Identity
	// knows Onceward, CloudEvents and Debezium, and parks what has no ID.
	Identity inbox.Identity

	// KeyParallelism is how many messages of one partition are handled at the
	// same time. 1: in order within the partition. n: n lanes per partition,
	// chosen by the key, so messages with the same key stay in order and
	// never run at once; those without a key are spread. Zero: 1.
	KeyParallelism int

	// FetchMaxBytes is how much one fetch of a partition asks for. A single
	// record may be larger; it comes through alone. Zero: 2 MiB;
	// larger fetches cost the broker less for each record.
	FetchMaxBytes int

	// FetchMaxWait is how long the broker may hold a fetch that finds nothing.
	// It costs no latency: a new record answers at once. Zero: 500 ms.
	FetchMaxWait time.Duration

	// BufferBytes bounds the records fetched but not yet handled, over all
	// assigned partitions; with many partitions each fetch asks for less. The
	// process needs about four times as much memory. Zero: 22 MiB, with which a
	// consumer of 1 KB messages stays below 100 MB (make bench-kafka).
	BufferBytes int

	// SessionTimeout is how long a member may be silent before the broker
	// gives its partitions to others. It must lie within the broker's
	// group.min.session.timeout.ms and group.max.session.timeout.ms.
	// Zero: 30 s.
	SessionTimeout time.Duration

	// RebalanceTimeout is how long the broker waits for the members in a
	// rebalance. Zero: 60 s.
	RebalanceTimeout time.Duration

	// HeartbeatInterval bounds how soon a member notices a rebalance. At most
	// a third of SessionTimeout. Zero: 1 s, or less with a short session.
	HeartbeatInterval time.Duration

	// DrainTimeout is how long handlers may go on after a rebalance has begun
	// or the context of Consume has ended; then their context is cancelled.
	// Shorter than RebalanceTimeout. Zero: 15 s, or half of RebalanceTimeout.
	DrainTimeout time.Duration

	// StalledAfter is how long a partition with waiting records may make no
	// progress before EventStalled says so, and how often it is said again.
	// Zero: 30 s.
	StalledAfter time.Duration

	// Logger receives every event. Nil: slog.Default().
	Logger *slog.Logger

	// OnEvent receives every event; the kinds are constants of this package.
	// It is called in the midst of the work: while it blocks, the consumer
	// stands still, and Consume can't return. Nil: none.
	OnEvent inbox.Hook
}

// StartAt is where a group without a committed offset begins.
type StartAt uint8

const (
	// StartFirst begins at the oldest record that the broker still has.
	StartFirst StartAt = iota
	// StartLast begins behind the newest record. The place is committed before
	// the first fetch, so a restart doesn't move it. A partition that is added
	// while Consume runs is read from its first record.
	StartLast
)

// Isolation is which records are delivered.
type Isolation uint8

const (
	// ReadCommitted delivers what is committed: records of transactions that
	// were aborted are left out, those of open ones wait.
	ReadCommitted Isolation = iota
	// ReadUncommitted delivers every record, aborted ones too.
	ReadUncommitted
)

const (
	defaultFetchMaxBytes     = 2 << 20
	defaultFetchMaxWait      = 500 * time.Millisecond
	defaultBufferBytes       = 22 << 20
	defaultSessionTimeout    = 30 * time.Second
	defaultRebalanceTimeout  = 60 * time.Second
	defaultHeartbeatInterval = time.Second
	defaultDrainTimeout      = 15 * time.Second
	defaultStalledAfter      = 30 * time.Second

	// minFetchBytes keeps fetches useful when many partitions share the buffer.
	minFetchBytes = 16 << 10
)

// withDefaults returns a copy in which every zero value is filled in.
func (c ConsumerConfig) withDefaults() ConsumerConfig {
	setDefault(&c.KeyParallelism, 1)
	setDefault(&c.FetchMaxBytes, defaultFetchMaxBytes)
	setDefault(&c.FetchMaxWait, defaultFetchMaxWait)
	setDefault(&c.BufferBytes, defaultBufferBytes)
	setDefault(&c.SessionTimeout, defaultSessionTimeout)
	setDefault(&c.RebalanceTimeout, defaultRebalanceTimeout)
	setDefault(&c.HeartbeatInterval, min(defaultHeartbeatInterval, c.SessionTimeout/3))
	setDefault(&c.DrainTimeout, min(defaultDrainTimeout, c.RebalanceTimeout/2))
	setDefault(&c.StalledAfter, defaultStalledAfter)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate checks a config that has its defaults. Every error names the field
// and the fix.
func (c ConsumerConfig) validate() error {
	if err := c.connection().validate(); err != nil {
		return err
	}
	if c.Group == "" {
		return errors.New("kafka: Group is empty: give the consumer group a name")
	}
	if len(c.Topics) == 0 {
		return errors.New("kafka: Topics is empty: name at least one topic")
	}
	seen := make(map[string]bool, len(c.Topics))
	for i, topic := range c.Topics {
		if topic == "" {
			return fmt.Errorf("kafka: Topics[%d] is empty: name the topic or remove the entry", i)
		}
		if seen[topic] {
			return fmt.Errorf("kafka: Topics names %q twice: remove one", topic)
		}
		seen[topic] = true
	}
	if c.StartAt > StartLast {
		return fmt.Errorf("kafka: StartAt is %d: use StartFirst or StartLast", c.StartAt)
	}
	if c.Isolation > ReadUncommitted {
		return fmt.Errorf("kafka: Isolation is %d: use ReadCommitted or ReadUncommitted", c.Isolation)
	}
	if c.KeyParallelism < 1 || c.KeyParallelism > 1024 {
		return fmt.Errorf("kafka: KeyParallelism is %d: use 1 to 1024, or 0 for 1", c.KeyParallelism)
	}
	if c.FetchMaxBytes < minFetchBytes || c.FetchMaxBytes > 1<<30 {
		return fmt.Errorf("kafka: FetchMaxBytes is %d: use 16 KiB to 1 GiB, or 0 for 2 MiB", c.FetchMaxBytes)
	}
	if c.BufferBytes < minFetchBytes {
		return fmt.Errorf("kafka: BufferBytes is %d: use at least 16 KiB, or 0 for 22 MiB", c.BufferBytes)
	}
	for _, d := range []struct {
		name     string
		value    time.Duration
		min, max time.Duration
	}{
		{"FetchMaxWait", c.FetchMaxWait, 10 * time.Millisecond, time.Minute},
		{"SessionTimeout", c.SessionTimeout, 100 * time.Millisecond, time.Hour},
		{"RebalanceTimeout", c.RebalanceTimeout, 100 * time.Millisecond, time.Hour},
		{"HeartbeatInterval", c.HeartbeatInterval, 10 * time.Millisecond, c.SessionTimeout / 3},
		{"DrainTimeout", c.DrainTimeout, time.Millisecond, c.RebalanceTimeout - time.Millisecond},
		{"StalledAfter", c.StalledAfter, 10 * time.Millisecond, 24 * time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			return fmt.Errorf("kafka: %s is %v: use %v to %v, or 0 for the default", d.name, d.value, d.min, d.max)
		}
	}
	return nil
}

func (c ConsumerConfig) connection() connection {
	return connection{brokers: c.Brokers, tls: c.TLS, sasl: c.SASL}
}
