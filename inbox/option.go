package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// Option sets one property of an Inbox. A value that cannot work is reported by
// Check and by every Process.
type Option func(*config)

type config struct {
	batch          int
	maxAttempts    int
	backoffMin     time.Duration
	backoffMax     time.Duration
	handlerTimeout time.Duration
	retention      time.Duration
	parkKey        bool
	fingerprint    bool
	logger         *slog.Logger
	hook           Hook
	consumer       string
}

const (
	// minRetention and minPause catch forgotten units: Retention(14) and
	// HandlerTimeout(30) are nanoseconds.
	minRetention = time.Minute
	minPause     = time.Millisecond

	// maxRetention leaves room for the slack.
	maxRetention = idempotency.MaxRetention - clockSlack

	// clockSlack is added to the life of records. A message is judged too old
	// by the clocks of its producer and of this process, a record expires by the
	// clock of the store: while they are less than a day apart, no message is
	// handled whose record has gone.
	clockSlack = 24 * time.Hour
)

// Batch is how many messages at most share one transaction. Default 1: one
// message, one transaction, the easiest to reason about. When a batch fails it
// is rolled back and run again one by one, so a bad message fails alone; a
// handler must therefore keep to the transaction, as always, and never end it: the
// records of all the messages are in it (ReasonUnfinished). 100 is a good value
// where throughput counts.
func Batch(messages int) Option {
	return func(c *config) { c.batch = messages }
}

// MaxAttempts is after how many failed attempts a message is set aside as a dead
// letter. Default 10: with the default backoff half a minute of trying on average,
// enough for a restart of what the handler depends on. Attempts are counted in
// the store and survive rollbacks and restarts; outages of the store, ended
// contexts and claims in progress elsewhere spend none. A deadlock or serialization
// failure is one attempt after five more tries at once.
func MaxAttempts(attempts int) Option {
	return func(c *config) { c.maxAttempts = attempts }
}

// Backoff bounds the pause after a failed attempt. The n-th pause is drawn
// between zero and minimum·2^(n-1), at most maximum (full jitter, so that
// consumers that failed together do not come back together). Default 100 ms and
// 30 s: quick for a lock lost to somebody else, slow for a dependency that is down.
// At least 1 ms each.
func Backoff(minimum, maximum time.Duration) Option {
	return func(c *config) { c.backoffMin, c.backoffMax = minimum, maximum }
}

// HandlerTimeout bounds one call of the handler. Then its context is cancelled
// with a cause that wraps ErrHandlerTimeout; a handler that does not return within one
// more second is abandoned: its transaction is rolled back, its goroutine left
// behind, and the call counts as a failed attempt. Default 30 s: longer than any
// healthy transaction, and a hung one is noticed within a minute. At least 1 ms.
//
// The context has no deadline, because one context serves all calls of a batch
// and each has its own time: what asks for ctx.Deadline, as some clients do to set a
// timeout of their own, is told that there is none, and must watch ctx.Done.
func HandlerTimeout(timeout time.Duration) Option {
	return func(c *config) { c.handlerTimeout = timeout }
}

// Retention is how old a message may be to be handled, and decides how long its
// record lives: a day longer, so that clocks may differ by less than a day. It must
// outlive the longest time in which a duplicate can still arrive. Default
// 14 days: longer than Kafka keeps messages by default (7 days), as long as SQS
// can (14 days). At least one minute, at most 100 years less a day.
//
// Raising it is no change of this line alone: records claimed under the shorter one
// expire by it, and messages older than the shorter and younger than the longer
// one would be handled again. Lengthen the records first, in PostgreSQL by
//
//	UPDATE onceward.record SET expires_at = created_at + interval '31 days'
//	WHERE (starts_with(scope, 'billing/') OR starts_with(scope, 'billing:'))
//	  AND expires_at < created_at + interval '31 days'
//
// with the new Retention and a day. Repeat it within each old Retention until
// records reach back far enough, for as long as the new one exceeds the old one; then
// deploy, and run it a last time when the last old process has stopped. If no
// message older than the old Retention is ever delivered, deploying is enough.
// Lowering it needs nothing.
func Retention(retention time.Duration) Option {
	return func(c *config) { c.retention = retention }
}

// ParkKey keeps order across dead letters: while one is set aside, later
// messages with the same topic and key are set aside behind it, in order, until it
// is redriven or discarded. Messages whose Key is nil never wait. Default off: one
// bad message does not stop the others of its key.
func ParkKey() Option {
	return func(c *config) { c.parkKey = true }
}

// FingerprintPayload records the SHA-256 of each payload. A message with a known
// ID and another payload becomes a dead letter with ReasonIDReused instead of a
// duplicate. Default off: a redelivery may be encoded anew with the same
// meaning, and then differs.
func FingerprintPayload() Option {
	return func(c *config) { c.fingerprint = true }
}

// Logger receives what the inbox does. Default slog.Default(). Payloads, keys and
// headers are never logged; errors of handlers are, up to 1 KB.
func Logger(logger *slog.Logger) Option {
	return func(c *config) { c.logger = logger }
}

// OnEvent sets a hook for every event, for metrics and traces. Default none. It
// runs inside Process, so it must be quick.
func OnEvent(hook Hook) Option {
	return func(c *config) { c.hook = hook }
}

var consumerName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

func newConfig(consumer string, options []Option) config {
	c := config{
		consumer:       consumer,
		batch:          1,
		maxAttempts:    10,
		backoffMin:     100 * time.Millisecond,
		backoffMax:     30 * time.Second,
		handlerTimeout: 30 * time.Second,
		retention:      14 * 24 * time.Hour,
	}
	for _, option := range options {
		if option != nil {
			option(&c)
		}
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	return c
}

// validate reports every property that cannot work, each with its fix.
func (c *config) validate(hasStore, hasHandler bool) error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("inbox: "+format, args...))
	}
	if !hasStore {
		problem("store is nil: pass one, such as postgres.New(pool)")
	}
	if !consumerName.MatchString(c.consumer) {
		problem("consumer name of %d bytes does not match [A-Za-z0-9._-]{1,100}: name the logical reader, such as %q", len(c.consumer), "billing")
	}
	if !hasHandler {
		problem("handler is nil: pass the function that handles a message")
	}
	if c.batch < 1 {
		problem("Batch(%d): pass the number of messages in a transaction, at least 1", c.batch)
	}
	if c.maxAttempts < 1 {
		problem("MaxAttempts(%d): pass at least 1; for messages that must never be set aside pass math.MaxInt", c.maxAttempts)
	}
	if c.backoffMin < minPause || c.backoffMax < c.backoffMin {
		problem("Backoff(%v, %v): pass a minimum of at least a millisecond and a maximum that is not below it, "+
			"such as 100*time.Millisecond and 30*time.Second", c.backoffMin, c.backoffMax)
	}
	if c.handlerTimeout < minPause {
		problem("HandlerTimeout(%v): pass at least a millisecond, such as 30*time.Second; "+
			"it must be longer than any healthy call of the handler takes", c.handlerTimeout)
	}
	if c.retention < minRetention || c.retention > maxRetention {
		problem("Retention(%v): pass at least a minute and at most 100 years less a day; "+
			"it must outlive the longest time in which a duplicate can still arrive", c.retention)
	}
	return errors.Join(problems...)
}
