package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/outbox"
)

func scheduleRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"WritersAtRandomAndOneReaderLoseRepeatAndReorderNothing", func(f *outboxFixture[Tx]) {
			randomLog(f, 1, false)
		}},
		{"WithReadersThatDieEventsComeAgainButNoneIsLostOrReordered", func(f *outboxFixture[Tx]) {
			randomLog(f, 3, true)
		}},
	}
}

const (
	scheduleWriters = 4
	scheduleRounds  = 30
	scheduleKeys    = 6
)

// written is what the writers of a schedule committed.
type written struct {
	mu  sync.Mutex
	ids map[string]bool

	// next draws the numbers in the IDs of a key, while its lock is held.
	next [scheduleKeys]atomic.Int64
}

// randomLog lets writers append in transactions of any shape while readers read
// in windows with tiny limits, and compares what came with what was committed.
func randomLog[Tx any](f *outboxFixture[Tx], readers int, mortal bool) {
	seed := time.Now().UnixNano()
	f.Logf("seed %d", seed)
	relay := registration()
	f.register(relay)
	committed := &written{ids: map[string]bool{}}

	var writers sync.WaitGroup
	for w := range scheduleWriters {
		store := f.db.Open(f.T)
		writers.Go(func() {
			dice := rand.New(rand.NewSource(seed + int64(w))) // Dice that can be thrown again.
			for round := range scheduleRounds {
				if err := f.writeAtRandom(store, dice, committed); err != nil {
					f.Errorf("writer %d, round %d: %v", w, round, err)
					return
				}
			}
		})
	}
	f.Cleanup(writers.Wait) // They end with the test's context.
	done := make(chan struct{})
	go func() {
		writers.Wait()
		close(done)
	}()

	dice := rand.New(rand.NewSource(seed - 1))
	live := make([]*instance[Tx], readers)
	for n := range live {
		live[n] = f.startElsewhere(fmt.Sprintf("reader-%d", n), relay)
	}
	var read []outbox.Event
	deaths, reads := 0, &readPositions{}
	for written := false; ; {
		select {
		case <-done:
			written = true
		default:
		}
		found := false
		for n, i := range live {
			events, more := i.readAtRandom(dice, reads)
			read = append(read, events...)
			found = found || more
			if mortal && dice.Intn(10) == 0 { // It leaves without a word of what it published last.
				if err := i.store.Leave(f.Context(), relay.Relay, i.name); err != nil {
					f.Fatalf("leave: %v", err)
				}
				deaths++
				live[n] = i.f.start(fmt.Sprintf("reader-%d-%d", n, deaths), relay)
				found = true
			}
		}
		if written && !found {
			break
		}
	}
	if !f.Failed() {
		committed.compare(f.Fatalf, read, mortal)
	}
}

// writeAtRandom is one transaction: some locks, appends between them, perhaps a
// savepoint that is taken back, perhaps a rollback.
func (f *outboxFixture[Tx]) writeAtRandom(store outbox.Store[Tx], dice *rand.Rand, committed *written) error {
	ctx, cancel := context.WithTimeout(f.Context(), soon)
	defer cancel()
	tx, err := f.db.Begin(ctx)
	if err != nil {
		return err
	}
	keys := dice.Perm(scheduleKeys)[:1+dice.Intn(3)]
	slices.Sort(keys) // One order of locks, or they deadlock.
	var ids []string
	appendOf := func(key int, keep bool) error {
		messages := make([]outbox.Message, 1+dice.Intn(3))
		for i := range messages {
			messages[i] = eventOf(fmt.Sprintf("key-%d/%08d", key, committed.next[key].Add(1)), fmt.Sprintf("key-%d", key))
			if keep {
				ids = append(ids, messages[i].ID)
			}
		}
		return store.Append(ctx, tx, messages)
	}
	for _, key := range keys {
		err := f.db.Lock(ctx, tx, fmt.Sprintf("key-%d", key))
		if err == nil {
			err = appendOf(key, true)
		}
		if err == nil && dice.Intn(3) == 0 {
			err = f.db.RollBackToSavepoint(ctx, tx, func() error { return appendOf(key, false) })
		}
		if err != nil {
			return errors.Join(err, f.db.Rollback(ctx, tx))
		}
	}
	if dice.Intn(4) == 0 {
		return f.db.Rollback(ctx, tx)
	}
	if err := f.db.Commit(ctx, tx); err != nil {
		return err
	}
	committed.mu.Lock()
	defer committed.mu.Unlock()
	for _, id := range ids {
		committed.ids[id] = true
	}
	return nil
}

// readAtRandom renews the lease, reads a chunk for one group of lanes, and moves
// behind all of it or a part; now and then it saves. It says whether there was, or
// may be, more.
func (i *instance[Tx]) readAtRandom(dice *rand.Rand, reads *readPositions) (published []outbox.Event, more bool) {
	i.f.Helper()
	if dice.Intn(4) == 0 || len(i.lease.Lanes) == 0 {
		i.save(nil, nil)
		i.renew()
		i.releaseSurplus()
		i.renew()
	}
	if len(i.lease.Lanes) == 0 {
		return nil, false
	}
	// Groups part, and meet where one reads until another stands.
	byPosition := map[outbox.Position][]int{}
	for _, lane := range i.lease.Lanes {
		byPosition[lane.Position] = append(byPosition[lane.Position], lane.Lane)
	}
	for _, group := range slices.SortedFunc(maps.Values(byPosition), func(x, y []int) int { return x[0] - y[0] }) {
		lanes := group[:1+dice.Intn(len(group))]
		until := outbox.Position{}
		if dice.Intn(2) == 0 {
			until = reads.laterThan(i.lane(lanes[0]).Position, i.lease.Lanes)
		}
		i.limit = 1 + dice.Intn(4)
		from := i.lane(lanes[0]).Position
		chunk := i.chunk(until, lanes...)
		to, events := chunk.End, chunk.Events
		if n := len(events); n > 0 && dice.Intn(3) == 0 {
			events = events[:1+dice.Intn(n)]
			to = chunk.Window.Behind(events[len(events)-1])
		}
		reads.note(from, to, chunk, until)
		i.move(to, lanes...)
		published = append(published, events...)
		more = more || len(chunk.Events) > 0 || chunk.More || len(lanes) < len(group) || until != outbox.Position{}
	}
	return published, more
}

// readPositions are the positions that readers moved to, in this order.
type readPositions struct {
	order []outbox.Position
	// closed are those with no window open, and whole those whose window was
	// opened and closed by one read up to then.
	closed, whole map[outbox.Position]bool
}

func (r *readPositions) note(from, to outbox.Position, chunk outbox.Chunk, until outbox.Position) {
	if r.closed == nil {
		r.closed, r.whole = map[outbox.Position]bool{}, map[outbox.Position]bool{}
	}
	if !slices.Contains(r.order, to) {
		r.order = append(r.order, to)
	}
	if to == chunk.End && !chunk.More {
		r.whole[to] = r.whole[to] || r.closed[from] && until == outbox.Position{}
		r.closed[to] = true
	}
}

// laterThan is where one of the lanes stands, if it stands there because of a
// read that began when others were at p already. Zero: none does.
func (r *readPositions) laterThan(p outbox.Position, lanes []outbox.OwnedLane) outbox.Position {
	from := slices.Index(r.order, p)
	for _, lane := range lanes {
		if from >= 0 && r.whole[lane.Position] && slices.Index(r.order, lane.Position) > from {
			return lane.Position
		}
	}
	return outbox.Position{}
}

// compare says what is missing, what came without being committed, what came
// twice (unless copies are allowed) and what came out of order within its key.
func (w *written) compare(failf func(string, ...any), read []outbox.Event, copies bool) {
	seen := map[string]bool{}
	last := map[string]string{}
	for _, event := range read {
		switch {
		case !w.ids[event.ID]:
			failf("event %s was never committed", event.ID)
		case seen[event.ID]:
			if !copies {
				failf("event %s came twice", event.ID)
			}
			continue
		}
		seen[event.ID] = true
		key := string(event.Key)
		if last[key] > event.ID {
			failf("event %s came after %s", event.ID, last[key])
		}
		last[key] = event.ID
	}
	for _, id := range slices.Sorted(maps.Keys(w.ids)) {
		if !seen[id] {
			failf("event %s is lost; %d of %d came", id, len(seen), len(w.ids))
		}
	}
}
