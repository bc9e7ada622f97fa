package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/idempotency"
)

// DefaultSchema is the PostgreSQL schema that holds the tables.
const DefaultSchema = "onceward"

// Option changes a default of New and NewSQL. One that cannot work is reported
// by Check and by every other call.
type Option func(*settings)

type settings struct {
	schema         string
	claimWait      time.Duration
	commitDeadline time.Duration
}

// WithSchema names the PostgreSQL schema that holds the tables; DefaultSchema
// by default. Any name is allowed, it is quoted where it is used. Stores with
// different schemas know nothing of each other.
func WithSchema(name string) Option {
	return func(s *settings) { s.schema = name }
}

// WithClaimWait bounds how long Atomic, and whatever else locks rows, waits for
// a lock before it gives up with idempotency.ErrInProgress. Default 5 s: longer
// than most handlers run, shorter than brokers' patience. At least a millisecond.
// A batch whose claims are held by several transactions waits for them one after
// the other, for each so long.
//
// Through pgx a claim that takes longer, whatever the reason, costs its connection: the
// server is asked to cancel it, and another connection finds out why. So stay well
// above the slowest statement of a healthy server; where requests to cancel do not arrive, as
// behind some poolers and firewalls, the wait is only bounded by the context.
func WithClaimWait(wait time.Duration) Option {
	return func(s *settings) { s.claimWait = wait }
}

// WithCommitDeadline bounds how long a commit may take before the connection is
// given up and the outcome is idempotency.ErrCommitUnknown. Default 10 s.
func WithCommitDeadline(deadline time.Duration) Option {
	return func(s *settings) { s.commitDeadline = deadline }
}

func newSettings(options []Option) (settings, error) {
	s := settings{schema: DefaultSchema, claimWait: 5 * time.Second, commitDeadline: 10 * time.Second}
	for _, option := range options {
		if option != nil {
			option(&s)
		}
	}
	if err := s.validate(); err != nil {
		// An inbox must not count it as an attempt of the message at hand.
		return s, fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err)
	}
	return s, nil
}

// maxIdentifierBytes is NAMEDATALEN-1: PostgreSQL cuts longer names, silently.
const maxIdentifierBytes = 63

func (s settings) validate() error {
	switch {
	case s.schema == "":
		return errors.New("postgres: WithSchema: the name is empty: leave the option out to use " + DefaultSchema)
	case len(s.schema) > maxIdentifierBytes:
		return fmt.Errorf("postgres: WithSchema: the name has %d bytes: PostgreSQL keeps %d of them, choose a shorter one", len(s.schema), maxIdentifierBytes)
	case !utf8.ValidString(s.schema) || strings.IndexByte(s.schema, 0) >= 0:
		return errors.New("postgres: WithSchema: the name is not UTF-8 or has a NUL byte: PostgreSQL refuses it")
	case strings.HasPrefix(s.schema, "pg_"):
		return fmt.Errorf("postgres: WithSchema(%q): PostgreSQL keeps names that start with pg_ for itself", s.schema)
	case s.claimWait < time.Millisecond || s.claimWait > maxLockTimeout:
		return fmt.Errorf("postgres: WithClaimWait(%v): must lie between 1ms and %v", s.claimWait, maxLockTimeout)
	case s.commitDeadline <= 0:
		return fmt.Errorf("postgres: WithCommitDeadline(%v): must be positive", s.commitDeadline)
	}
	return nil
}

// maxLockTimeout is what PostgreSQL's lock_timeout can hold, in whole days.
const maxLockTimeout = 24 * 24 * time.Hour

// lockTimeout is a wait as a value of the setting of that name.
func lockTimeout(wait time.Duration) string {
	return strconv.FormatInt(wait.Milliseconds(), 10) + "ms"
}

// quoted is the schema as an SQL identifier.
func (s settings) quoted() string {
	return `"` + strings.ReplaceAll(s.schema, `"`, `""`) + `"`
}
