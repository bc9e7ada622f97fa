package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// Store is what an Inbox needs from a database, over its transaction type.
// Package storetest holds the conformance suite every Store passes. All errors
// are, or wrap, the sentinels of package idempotency.
type Store[Tx any] interface {
	idempotency.Store[Tx]

	// Check returns nil if the store answers and its schema is current, else
	// an error that is ErrUnavailable or ErrNotMigrated and says what to do.
	Check(ctx context.Context) error

	// CountAttempt counts one failed attempt at a record in a transaction of
	// its own and returns the number so far. The count lives for retention from
	// the last attempt, on the store's clock; after that the next attempt is
	// number 1, whether Prune has deleted it or not.
	CountAttempt(ctx context.Context, scope, key, cause string, retention time.Duration) (int, error)

	// ParkedKeys reports, for each key of topic, whether messages with that key
	// wait behind a dead letter of the consumer. Until tx ends, those that are
	// parked stay parked. It is called with the topics in ascending order.
	ParkedKeys(ctx context.Context, tx Tx, consumer, topic string, keys [][]byte) ([]bool, error)

	// AddDeadLetters writes dead letters in tx, in their order, and parks the
	// keys of those that have ParksKey. Like all that is done on tx, it is called
	// before any handler has had tx.
	AddDeadLetters(ctx context.Context, tx Tx, letters []DeadLetter) error

	// DeadLetters lists the consumer's selected dead letters, oldest first.
	// Limit is always positive, here and in DiscardDeadLetters.
	DeadLetters(ctx context.Context, consumer string, filter Filter) ([]DeadLetter, error)

	// TakeDeadLetter removes one dead letter and runs work on it in the same
	// transaction, and frees its key if it was the last one there. ErrGone:
	// somebody else removed it. ErrBehind: an older one parks the same key.
	TakeDeadLetter(ctx context.Context, consumer string, number int64, work func(ctx context.Context, tx Tx, letter DeadLetter) error) error

	// FailDeadLetter adds one attempt and its error to a dead letter whose
	// redrive failed.
	FailDeadLetter(ctx context.Context, consumer string, number int64, cause string) error

	// DiscardDeadLetters deletes the selected dead letters and returns how
	// many there were. Keys without dead letters are freed.
	DiscardDeadLetters(ctx context.Context, consumer string, filter Filter) (int, error)

	// Prune deletes at most limit expired records and attempt counts in one
	// short transaction and returns how many. If another Prune is at work
	// anywhere on this store, it returns 0 at once.
	Prune(ctx context.Context, limit int) (int, error)
}

// Errors of TakeDeadLetter.
var (
	// ErrGone: the dead letter was redriven or discarded by somebody else.
	ErrGone = errors.New("dead letter is gone")

	// ErrBehind: an older dead letter parks the same key and must go first.
	ErrBehind = errors.New("an older dead letter with the same key comes first")
)
