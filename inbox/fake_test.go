package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// fakeStore keeps everything in memory and fails on request. Like a database it
// makes a claim wait for the transaction that holds it, rolls back when the
// context ends, and runs the work in the caller's goroutine.
type fakeStore struct {
	mu       sync.Mutex
	records  map[string]*fakeRecord
	attempts map[string]int
	letters  []inbox.DeadLetter
	number   int64
	effects  []string
	expired  int

	// Faults, each used once, in order: nil entries are no fault.
	beginFaults  []error
	commitFaults []commitFault
	countFaults  []error
	listFaults   []error
	pruneFaults  []error

	// onRollback runs after one because of an error of the work.
	onRollback func()

	// onCommit runs while the commit is under way.
	onCommit func()

	// agreed counts the transactions whose work returned nil.
	atomics, agreed, prunes int
	claims                  []idempotency.Claim
	// listed are the filters of every listing and deletion.
	listed []inbox.Filter
	// lockedTopics are those of ParkedKeys.
	lockedTopics []string
}

// commitFault is an error of COMMIT; the transaction may be committed all the same.
type commitFault struct {
	err       error
	committed bool
}

type fakeRecord struct {
	fingerprint []byte
	holder      *fakeTx // nil: committed
}

// fakeClaimWait is how long a claim waits for another transaction.
const fakeClaimWait = 100 * time.Millisecond

var (
	errConnection = errors.New("connection is closed")
	errSpoiled    = errors.New("current transaction is aborted")
)

func newFakeStore() *fakeStore {
	return &fakeStore{records: map[string]*fakeRecord{}, attempts: map[string]int{}}
}

// fakeTx collects effects until it is committed.
type fakeTx struct {
	store   *fakeStore
	ended   chan struct{}
	severed bool
	spoiled bool
	over    bool
	held    []string
	effects []string
	letters []inbox.DeadLetter
	taken   int64
}

// Do has an effect in the transaction.
func (tx *fakeTx) Do(effect string) error {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	if tx.over {
		return errConnection
	}
	tx.effects = append(tx.effects, effect)
	return nil
}

// Spoil is an SQL error that the handler swallows: every later statement fails,
// and so does the commit.
func (tx *fakeTx) Spoil() {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.spoiled = true
}

// Commit is what a handler must not do.
func (tx *fakeTx) Commit() { tx.end(true) }

// Rollback is what a handler must not do either.
func (tx *fakeTx) Rollback() { tx.end(false) }

// sever is the connection's death.
func (tx *fakeTx) sever() {
	if tx.end(false) {
		tx.store.mu.Lock()
		defer tx.store.mu.Unlock()
		tx.severed = true
	}
}

// end commits or rolls back, once, and reports whether it did.
func (tx *fakeTx) end(commit bool) bool {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if tx.over {
		return false
	}
	tx.over = true
	for _, key := range tx.held {
		if commit {
			s.records[key].holder = nil
		} else {
			delete(s.records, key)
		}
	}
	if commit {
		s.effects = append(s.effects, tx.effects...)
		for _, letter := range tx.letters {
			s.number++
			letter.Number, letter.CreatedAt = s.number, time.Now()
			s.letters = append(s.letters, letter)
		}
		s.letters = slices.DeleteFunc(s.letters, func(l inbox.DeadLetter) bool { return l.Number == tx.taken })
	}
	close(tx.ended)
	return true
}

func next[F any](s *fakeStore, faults *[]F) (fault F) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(*faults) > 0 {
		fault, *faults = (*faults)[0], (*faults)[1:]
	}
	return fault
}

// transaction runs work and decides how it ends.
func (s *fakeStore) transaction(ctx context.Context, claims []idempotency.Claim, work func(tx *fakeTx, verdicts []idempotency.Verdict) error) error {
	s.mu.Lock()
	s.atomics++
	s.claims = append(s.claims, claims...)
	s.mu.Unlock()
	if err := next(s, &s.beginFaults); err != nil {
		return err
	}
	tx := &fakeTx{store: s, ended: make(chan struct{})}
	defer tx.end(false)
	release := context.AfterFunc(ctx, tx.sever)
	defer release()
	verdicts := make([]idempotency.Verdict, len(claims))
	for i, claim := range claims {
		if err := claim.Validate(); err != nil {
			return err
		}
		verdict, err := s.claim(ctx, tx, claim)
		if err != nil {
			return err
		}
		verdicts[i] = verdict
	}
	if err := work(tx, verdicts); err != nil {
		s.mu.Lock()
		severed, ended := tx.severed, tx.over
		s.mu.Unlock()
		switch {
		case severed:
			return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err)
		case ended:
			return fmt.Errorf("fake: %w: %w", idempotency.ErrTransactionEnded, err)
		}
		if hook := s.onRollback; hook != nil && tx.end(false) {
			s.onRollback = nil
			hook()
		}
		return fmt.Errorf("fake: work: %w", err)
	}
	s.mu.Lock()
	s.agreed++
	s.mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, ctx.Err())
	}
	if s.onCommit != nil {
		s.onCommit()
		if ctx.Err() != nil {
			return idempotency.ErrCommitUnknown
		}
	}
	if fault := next(s, &s.commitFaults); fault.err != nil {
		tx.end(fault.committed)
		return fault.err
	}
	s.mu.Lock()
	spoiled := tx.spoiled
	s.mu.Unlock()
	if spoiled {
		return errSpoiled
	}
	if !tx.end(true) {
		return idempotency.ErrTransactionEnded
	}
	return nil
}

func (s *fakeStore) claim(ctx context.Context, tx *fakeTx, claim idempotency.Claim) (idempotency.Verdict, error) {
	key := claim.Scope + "\x00" + claim.Key
	deadline := time.NewTimer(fakeClaimWait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		record := s.records[key]
		switch {
		case tx.over:
			s.mu.Unlock()
			return 0, fmt.Errorf("%w: %w", idempotency.ErrUnavailable, context.Cause(ctx))
		case record == nil:
			s.records[key] = &fakeRecord{fingerprint: claim.Fingerprint, holder: tx}
			tx.held = append(tx.held, key)
			s.mu.Unlock()
			return idempotency.Fresh, nil
		case record.holder == nil || record.holder == tx:
			s.mu.Unlock()
			if claim.Fingerprint != nil && record.fingerprint != nil && !bytes.Equal(claim.Fingerprint, record.fingerprint) {
				return idempotency.Reused, nil
			}
			return idempotency.Duplicate, nil
		}
		holder := record.holder
		s.mu.Unlock()
		select {
		case <-holder.ended:
		case <-deadline.C:
			return 0, idempotency.ErrInProgress
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %w", idempotency.ErrUnavailable, context.Cause(ctx))
		}
	}
}

func (s *fakeStore) Atomic(ctx context.Context, claims []idempotency.Claim, work func(context.Context, *fakeTx, []idempotency.Verdict) error) error {
	return s.transaction(ctx, claims, func(tx *fakeTx, verdicts []idempotency.Verdict) error { return work(ctx, tx, verdicts) })
}

func (s *fakeStore) Check(context.Context) error { return nil }

func (s *fakeStore) CountAttempt(ctx context.Context, scope, key, _ string, _ time.Duration) (int, error) {
	if err := next(s, &s.countFaults); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[scope+"\x00"+key]++
	return s.attempts[scope+"\x00"+key], nil
}

func (s *fakeStore) Prune(_ context.Context, limit int) (int, error) {
	s.mu.Lock()
	s.prunes++
	s.mu.Unlock()
	if err := next(s, &s.pruneFaults); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(limit, s.expired)
	s.expired -= n
	return n, nil
}
