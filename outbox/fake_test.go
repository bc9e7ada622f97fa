package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/onceward/onceward/outbox"
)

// fakeStore keeps everything in memory and fails on request. Like PostgreSQL it
// numbers events when they are written and shows them when they are committed, and a
// position is a snapshot: how many transactions had committed.
type fakeStore struct {
	mu     sync.Mutex
	signal outbox.Signal

	log     []*fakeEvent // by number
	commits int
	relays  map[string]*fakeRelay

	// Before is called at the beginning of each statement, after at its end;
	// what they return is the statement's error. Both may block.
	before, after func(ctx context.Context, statement string) error
	faulty        bool

	statements  map[string]int
	requests    []outbox.ReadRequest
	settlements []outbox.Settlement
	appended    []outbox.Message
	pruning     fakePruning
}

type fakeEvent struct {
	outbox.Event

	commit int // 0: its transaction is open
	after  time.Time
}

type fakeRelay struct {
	outbox.Registration

	lanes     []fakeLane
	instances map[string]time.Time // end of the lease
	aside     map[int64]*fakeAside
}

type fakeLane struct {
	owner    string
	epoch    int64
	position outbox.Position
}

type fakeAside struct {
	outbox.Aside

	due time.Time
}

type fakeTx struct{ events []*fakeEvent }

func newFakeStore() *fakeStore {
	return &fakeStore{relays: map[string]*fakeRelay{}, statements: map[string]int{}}
}

// statement runs one, with its faults. Its context may end it before it begins.
func (s *fakeStore) statement(ctx context.Context, name string, run func() error) error {
	s.mu.Lock()
	s.statements[name]++
	before, after := s.before, s.after
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, name); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	err := run()
	s.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, name)
	}
	return err
}

// faults sets what is called before and after statements, while a relay runs.
func (s *fakeStore) faults(before, after func(ctx context.Context, statement string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after, s.faulty = before, after, true
}

func (s *fakeStore) Begin() *fakeTx { return &fakeTx{} }

func (s *fakeStore) Commit(tx *fakeTx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	for _, e := range tx.events {
		e.commit = s.commits
	}
}

func (s *fakeStore) Append(ctx context.Context, tx *fakeTx, messages []outbox.Message) error {
	return s.statement(ctx, "Append", func() error {
		for _, m := range messages {
			e := &fakeEvent{Event: outbox.Event{Message: m, Number: int64(len(s.log) + 1), CreatedAt: time.Now()}, after: m.DeliverAfter}
			s.log = append(s.log, e)
			tx.events = append(tx.events, e)
		}
		s.appended = append(s.appended, messages...)
		s.signal.Raise()
		return nil
	})
}

func (s *fakeStore) Check(ctx context.Context) error {
	return s.statement(ctx, "Check", func() error { return nil })
}

func (s *fakeStore) Appended() *outbox.Signal { return &s.signal }

func (s *fakeStore) Held(ctx context.Context, relay string, lanes []int) (held []outbox.Aside, err error) {
	err = s.statement(ctx, "Held", func() error {
		keys := map[string]bool{}
		for _, number := range slices.Sorted(maps.Keys(s.relays[relay].aside)) {
			a := s.relays[relay].aside[number]
			if !slices.Contains(lanes, a.Lane) {
				continue
			}
			of := a.Aside
			of.Ahead = !s.relays[relay].lanes[a.Lane].passed(s.log[number-1])
			inLine := a.State != outbox.Delayed && a.State != outbox.Skipped && a.KeyHash != ""
			if of.Ahead || a.State == outbox.Retrying || a.State == outbox.Skipped || inLine && !keys[a.KeyHash] {
				held = append(held, of)
				keys[a.KeyHash] = keys[a.KeyHash] || inLine
			}
		}
		return nil
	})
	return held, err
}

// passed reports whether the lane would not read e again.
func (l *fakeLane) passed(e *fakeEvent) bool {
	at := l.position
	seen, _ := strconv.Atoi(at.Seen)
	target, _ := strconv.Atoi(at.Target)
	isNew := e.commit > seen || at.Replay > 0 && e.Number >= at.Replay
	return !isNew || at.Target != "" && e.commit <= target && e.Number <= at.Last
}

func laneOf(e *fakeEvent, lanes int) int {
	if e.Key == nil {
		return int(e.Number) % lanes
	}
	h := fnv.New32a()
	_, _ = h.Write(e.Key)
	return int(h.Sum32() % uint32(lanes))
}

func (e *fakeEvent) read(lane int) outbox.Event {
	event := e.Event
	event.Lane = lane
	event.Waits = 0
	if !e.after.IsZero() {
		event.Waits = time.Until(e.after)
	}
	return event
}

func (s *fakeStore) Read(ctx context.Context, r outbox.ReadRequest) (c outbox.Chunk, err error) {
	err = s.statement(ctx, "Read", func() error {
		if r.Limit < 1 || r.MaxBytes < 1 || len(r.Lanes) == 0 {
			return fmt.Errorf("bad request %+v", r)
		}
		s.requests = append(s.requests, r)
		at := r.Position
		seen, _ := strconv.Atoi(at.Seen)
		if at.Target == "" {
			at.Target, at.Last = strconv.Itoa(s.commits), 0
			if r.Until != (outbox.Position{}) {
				until, _ := strconv.Atoi(r.Until.Seen)
				if until < seen {
					return fmt.Errorf("until %q, which is before %q", r.Until.Seen, at.Seen)
				}
				at.Target = r.Until.Seen
			}
		}
		target, _ := strconv.Atoi(at.Target)
		c.Window = at
		size, passed := 0, false
		for _, e := range s.log {
			isNew := e.commit > seen || at.Replay > 0 && e.Number >= at.Replay
			if e.Number <= at.Last || e.commit == 0 || e.commit > target || !isNew {
				continue
			}
			lane := laneOf(e, r.AllLanes)
			if !slices.Contains(r.Lanes, lane) {
				continue
			}
			passed = true
			if len(c.Events) == r.Limit || len(c.Events) > 0 && size+len(e.Payload) > r.MaxBytes {
				c.More = true
				break
			}
			size += len(e.Payload)
			c.Events = append(c.Events, e.read(lane))
		}
		switch {
		case c.More:
			c.End = at.Behind(c.Events[len(c.Events)-1])
		case !passed && r.Position.Target == "":
			c.End = r.Position
		default:
			c.End = outbox.Position{Seen: at.Target}
		}
		return nil
	})
	return c, err
}

func (s *fakeStore) nextDue(r *fakeRelay, lanes []int) time.Duration {
	next := time.Duration(-1)
	for _, a := range r.aside {
		if !slices.Contains(lanes, a.Lane) || a.State != outbox.Delayed && a.State != outbox.Retrying {
			continue
		}
		if wait := max(0, time.Until(a.due)); next < 0 || wait < next {
			next = wait
		}
	}
	return next
}

func (s *fakeStore) Due(ctx context.Context, relay string, lanes []int, limit, _ int) (due outbox.Due, err error) {
	err = s.statement(ctx, "Due", func() error {
		r := s.relays[relay]
		var roots []*fakeAside
		for _, a := range r.aside {
			if slices.Contains(lanes, a.Lane) && (a.State == outbox.Delayed || a.State == outbox.Retrying) && !time.Now().Before(a.due) {
				roots = append(roots, a)
			}
		}
		slices.SortFunc(roots, func(a, b *fakeAside) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.Number, b.Number)) })
		add := func(a *fakeAside) {
			if len(due.Events) < limit {
				due.Events = append(due.Events, s.log[a.Number-1].read(a.Lane))
				due.Asides = append(due.Asides, a.Aside)
			}
		}
		for _, a := range roots {
			add(a)
			if a.State == outbox.Retrying {
				for _, b := range r.behind(a.KeyHash) {
					add(b)
				}
			}
		}
		due.Next = s.nextDue(r, lanes)
		return nil
	})
	return due, err
}

func (r *fakeRelay) behind(hash string) (behind []*fakeAside) {
	for _, number := range slices.Sorted(maps.Keys(r.aside)) {
		if a := r.aside[number]; a.State == outbox.Behind && a.KeyHash == hash {
			behind = append(behind, a)
		}
	}
	return behind
}

func (s *fakeStore) Settle(ctx context.Context, settlement outbox.Settlement) (result outbox.Settled, err error) {
	err = s.statement(ctx, "Settle", func() error {
		r := s.relays[settlement.Relay]
		if r == nil {
			return outbox.ErrNoRelay
		}
		s.settlements = append(s.settlements, settlement)
		ours := map[int]bool{}
		for _, p := range settlement.Lanes {
			l := &r.lanes[p.Lane]
			if l.owner != settlement.Instance || l.epoch != p.Epoch {
				result.Lost = append(result.Lost, p.Lane)
				continue
			}
			ours[p.Lane] = true
			l.position = p.Position
			if p.Release {
				l.owner = ""
			}
		}
		for _, a := range settlement.Aside {
			if ours[a.Lane] {
				r.aside[a.Number] = &fakeAside{a, time.Now().Add(a.After)}
			}
		}
		hashes := map[string]bool{}
		for _, a := range settlement.Done {
			if ours[a.Lane] {
				delete(r.aside, a.Number)
				hashes[a.KeyHash] = true
			}
		}
		delete(hashes, "")
		for hash := range hashes {
			if !r.promote(hash) {
				result.Freed = append(result.Freed, hash)
			}
		}
		return nil
	})
	return result, err
}

// promote has the first event of a key tried if it is one behind, and reports whether
// anything waits there at all.
func (r *fakeRelay) promote(hash string) bool {
	for _, a := range r.aside {
		if a.KeyHash == hash && (a.State == outbox.Retrying || a.State == outbox.Dead) {
			return true
		}
	}
	if behind := r.behind(hash); len(behind) > 0 {
		behind[0].State, behind[0].due = outbox.Retrying, time.Now()
		return true
	}
	return false
}

var errNotFaked = errors.New("not faked")

func (s *fakeStore) count(statement string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statements[statement]
}
