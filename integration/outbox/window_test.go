package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// schedules is how many random ones a property test tries in each run.
const schedules = 3

// TestEveryCommittedEventIsReadOnceInTheOrderOfItsKey reads the log by the store's own calls, a few events at a time, against
// writers that do everything which makes numbers, xids and commits disagree. Two readers share the lanes.
func TestEveryCommittedEventIsReadOnceInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	for n := range schedules {
		t.Run(fmt.Sprintf("schedule %d", n+1), func(t *testing.T) {
			t.Parallel()
			server := newCluster(t)
			random := newRandom(seed(t))
			url := server.Database()
			admin := newDatabase(t, url)
			execute(t, admin, sleepyTrigger)
			store := postgres.New(newPool(t, url))
			registration := outbox.Registration{Relay: "reader", Lanes: 1 + random.IntN(16), Policy: outbox.BlockLane, Retention: time.Hour}
			if err := store.Register(t.Context(), registration); err != nil {
				t.Fatalf("register: %v", err)
			}

			crowd := crowds[n%len(crowds)]
			if crowd.elsewhere {
				stop := elsewhere(t, server.Database(), random)
				defer stop()
			}
			w := newWriters(t, url)
			commit := w.hold()
			read := newJournal()
			var readers sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for n := range 2 {
				r := newReader(t, store, fmt.Sprintf("reader-%d", n+1), registration, random, read)
				readers.Go(func() { r.run(ctx) })
			}

			w.run(t.Context(), random, crowd.writers, crowd.transactions)
			others := readLedger(t, admin)
			read.await(t, "everything but what a transaction holds back", others)
			if read.has(eventID(heldKey, 1)) {
				t.Error("an event was read whose transaction is open")
			}
			commit()
			all := readLedger(t, admin)
			read.await(t, "what was held back", all)
			cancel()
			readers.Wait()

			// Nothing comes twice, also not with the next windows.
			newReader(t, store, "last", registration, random, read).runToTheEnd(t.Context())
			v := judge(all, read.published())
			wantNoCopies(t, "read", v)
			t.Logf("%d lanes; %d committed, %d aborted, %d prepared, %d savepoints; %v", registration.Lanes,
				w.committed.Load(), w.aborted.Load(), w.prepared.Load(), w.savepoints.Load(), v)
			if w.prepared.Load() == 0 || w.savepoints.Load() == 0 || w.aborted.Load() == 0 {
				t.Error("a kind of transaction did not happen, so its part proved nothing")
			}
		})
	}
}

// lease of the readers: long, since what is tested is the window.
const readerLease = 30 * time.Second

// reader is the least that a relay does: it reads lanes with one position together, writes down what it got, and settles
// all of it or a part, so that its lanes drift apart and meet again.
type reader struct {
	t      testing.TB
	store  outbox.RelayStore
	relay  string
	name   string
	lanes  int
	random *rand.Rand

	journal *journal
	owned   []outbox.OwnedLane
	opened  map[string]int // the snapshots of windows that were opened here, numbered in their order
	ends    []outbox.Position
}

func newReader(t testing.TB, store outbox.RelayStore, name string, of outbox.Registration, random *rand.Rand, j *journal) *reader {
	return &reader{
		t: t, store: store, relay: of.Relay, name: name, lanes: of.Lanes,
		random: newRandom(random.Uint64()), journal: j, opened: map[string]int{},
	}
}

// run reads until ctx ends, and leaves with everything saved.
func (r *reader) run(ctx context.Context) {
	background := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		if _, err := r.round(background); err != nil {
			r.t.Errorf("%s: %v", r.name, err)
			return
		}
		pause(ctx, time.Duration(r.random.Int64N(int64(3*time.Millisecond))))
	}
	if err := r.save(background, len(r.owned)); err != nil {
		r.t.Errorf("%s: %v", r.name, err)
	}
	if err := r.store.Leave(background, r.relay, r.name); err != nil {
		r.t.Errorf("%s leaves: %v", r.name, err)
	}
}

// runToTheEnd reads until a whole round finds nothing.
func (r *reader) runToTheEnd(ctx context.Context) {
	r.t.Helper()
	for quiet := 0; quiet < 2; {
		n, err := r.round(ctx)
		if err != nil {
			r.t.Fatalf("%s: %v", r.name, err)
		}
		if quiet++; n > 0 {
			quiet = 0
		}
	}
}

// round reads once for each position. Now and then it saves what it did, and leases the lanes: seldom, since each write
// makes the next snapshot a fresh one.
func (r *reader) round(ctx context.Context) (events int, err error) {
	if len(r.owned) == 0 || r.random.IntN(12) == 0 {
		if err := r.takeLanes(ctx); err != nil {
			return 0, err
		}
	}
	groups := map[outbox.Position][]*outbox.OwnedLane{}
	for i := range r.owned {
		lane := &r.owned[i]
		groups[lane.Position] = append(groups[lane.Position], lane)
	}
	for position, lanes := range groups {
		n, err := r.read(ctx, position, lanes)
		if err != nil {
			return events, err
		}
		events += n
	}
	return events, nil
}

// takeLanes saves everything, leases, and releases what is above the share.
func (r *reader) takeLanes(ctx context.Context) error {
	if err := r.save(ctx, len(r.owned)); err != nil {
		return err
	}
	lease, err := r.store.Lease(ctx, r.relay, r.name, readerLease)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	r.owned = lease.Lanes
	return r.save(ctx, lease.Share)
}

// save settles all lanes, and releases those above a share.
func (r *reader) save(ctx context.Context, share int) error {
	var progress []outbox.LaneProgress
	for i, lane := range r.owned {
		progress = append(progress, outbox.LaneProgress{OwnedLane: lane, Release: i >= share})
	}
	r.owned = r.owned[:min(share, len(r.owned))]
	return r.settle(ctx, progress)
}

func (r *reader) settle(ctx context.Context, lanes []outbox.LaneProgress) error {
	settled, err := r.store.Settle(ctx, outbox.Settlement{Relay: r.relay, Instance: r.name, Lanes: lanes})
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if len(settled.Lost) > 0 {
		return fmt.Errorf("lost the lanes %v within the lease", settled.Lost)
	}
	return nil
}

// read reads one chunk of lanes that stand at one position.
func (r *reader) read(ctx context.Context, position outbox.Position, lanes []*outbox.OwnedLane) (int, error) {
	request := outbox.ReadRequest{
		Relay: r.relay, AllLanes: r.lanes, Position: position, Until: r.until(position),
		Limit: 1 + r.random.IntN(5), MaxBytes: 1 << r.random.IntN(12),
	}
	for _, lane := range lanes {
		request.Lanes = append(request.Lanes, lane.Lane)
	}
	chunk, err := r.store.Read(ctx, request)
	if err != nil {
		return 0, fmt.Errorf("read %d lanes from %+v: %w", len(lanes), position, err)
	}
	if len(chunk.Events) > request.Limit {
		return 0, fmt.Errorf("%d events for a limit of %d", len(chunk.Events), request.Limit)
	}
	if !slices.IsSortedFunc(chunk.Events, func(a, b outbox.Event) int { return int(a.Number - b.Number) }) {
		return 0, fmt.Errorf("events are not in the order of their numbers: %s", ids(chunk.Events))
	}
	if target := chunk.Window.Target; position.Target == "" && request.Until.Seen == "" && target != "" {
		if _, known := r.opened[target]; !known {
			r.opened[target] = len(r.opened) + 1
		}
	}
	end := chunk.End
	handled := chunk.Events
	if n := len(handled); n > 0 && r.random.IntN(3) == 0 { // a crash of the broker, as it were, in the midst
		handled = handled[:1+r.random.IntN(n)]
		end = chunk.Window.Behind(handled[len(handled)-1])
	} else if r.opened[end.Seen] > 0 && end.Target == "" {
		r.ends = append(r.ends, end)
	}
	// Each lane stands where its own part ends: those without an event in what is left out are behind all of it.
	for _, lane := range lanes {
		lane.Position = chunk.End
		if slices.ContainsFunc(chunk.Events[len(handled):], func(e outbox.Event) bool { return e.Lane == lane.Lane }) {
			lane.Position = end
		}
	}
	for _, e := range chunk.Events {
		if !slices.Contains(request.Lanes, e.Lane) {
			return 0, fmt.Errorf("event %s of lane %d is in none of the lanes %v", e.ID, e.Lane, request.Lanes)
		}
	}
	for _, e := range handled {
		r.journal.write(e.ID)
	}
	return len(handled), nil
}

// until sometimes has lanes that are behind read no further than others have come.
func (r *reader) until(position outbox.Position) outbox.Position {
	here := r.opened[position.Seen]
	if here == 0 || len(r.ends) == 0 || r.random.IntN(2) == 0 {
		return outbox.Position{}
	}
	end := r.ends[len(r.ends)-1-r.random.IntN(min(len(r.ends), 4))]
	if r.opened[end.Seen] <= here {
		return outbox.Position{}
	}
	return end
}
