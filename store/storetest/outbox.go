package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// OutboxHarness makes an empty, migrated database for one test, and has it
// removed by t.Cleanup.
type OutboxHarness[Tx any] func(t *testing.T) OutboxDatabase[Tx]

// OutboxDatabase is one database under test, shared by the stores that are
// opened on it. Its methods fail the test they were given or return what the
// database said.
type OutboxDatabase[Tx any] interface { //nolint:interfacebloat // one method for each thing the rules need
	// Open returns one more store on the database that shares nothing with the
	// others but the database itself, as another process would. It is closed
	// by t.Cleanup.
	Open(t *testing.T) outbox.Store[Tx]

	// Begin begins a transaction of an application, which Append joins.
	// Commit and Rollback end it.
	Begin(ctx context.Context) (Tx, error)
	Commit(ctx context.Context, tx Tx) error
	Rollback(ctx context.Context, tx Tx) error

	// ErrEnded is the driver's error of a statement on a transaction that has ended.
	ErrEnded() error

	// RollBackToSavepoint runs work in a savepoint of tx and takes back what it did.
	RollBackToSavepoint(ctx context.Context, tx Tx, work func() error) error

	// Lock has tx wait for transactions that hold the name, and hold it until tx
	// ends: what writers do with the row that the events of a key belong to.
	Lock(ctx context.Context, tx Tx, name string) error

	// InsertPlain writes an event by the INSERT that is documented for programs
	// in other languages. InsertInvalid writes one with headers that are none,
	// InsertLarge one with a payload of so many bytes, which the database makes,
	// as such a program may.
	InsertPlain(ctx context.Context, tx Tx, topic string, key, payload []byte) error
	InsertInvalid(ctx context.Context, tx Tx, topic string) error
	InsertLarge(ctx context.Context, tx Tx, topic string, key []byte, payloadBytes int) error

	// OneWriter: a transaction that has written keeps others from writing until it ends.
	OneWriter() bool

	// Age moves every time the stores have recorded back by d, which is the
	// same as letting d pass.
	Age(t *testing.T, d time.Duration)
}

type outboxRule[Tx any] = ruleOn[*outboxFixture[Tx]]

// RunOutbox proves every rule on databases made by harness.
func RunOutbox[Tx any](t *testing.T, harness OutboxHarness[Tx]) {
	t.Helper()
	newFixture := func(t *testing.T) *outboxFixture[Tx] {
		t.Helper()
		db := harness(t)
		return &outboxFixture[Tx]{T: t, db: db, store: db.Open(t)}
	}
	runGroups(t, newFixture, []group[*outboxFixture[Tx]]{
		{"Append", appendRules[Tx]()},
		{"Registration", registrationRules[Tx]()},
		{"Read", readRules[Tx]()},
		{"Topics", topicRules[Tx]()},
		{"Lease", leaseRules[Tx]()},
		{"Settle", settleRules[Tx]()},
		{"Aside", asideRules[Tx]()},
		{"Due", dueRules[Tx]()},
		{"Keys", outboxKeyRules[Tx]()},
		{"Replay", replayRules[Tx]()},
		{"Operations", operationRules[Tx]()},
		{"Status", statusRules[Tx]()},
		{"PruneLog", pruneLogRules[Tx]()},
		{"Schedule", scheduleRules[Tx]()},
	})
}

// outboxFixture is one test's database with a first store on it.
type outboxFixture[Tx any] struct {
	*testing.T

	db    OutboxDatabase[Tx]
	store outbox.Store[Tx]
}

const (
	relayName  = "events"
	relayLanes = 4
	longLease  = 1000 * time.Hour // One that ends only in tests that mean it to.
)

// registration is that of the relay that most tests use.
func registration() outbox.Registration {
	return outbox.Registration{Relay: relayName, Lanes: relayLanes, Policy: outbox.BlockLane, Retention: 24 * time.Hour}
}

func parkingRegistration() outbox.Registration {
	r := registration()
	r.Policy = outbox.ParkKey
	return r
}

// eventOf is a plain event with this ID. An empty key is none.
func eventOf(id, key string) outbox.Message {
	m := outbox.Message{ID: id, Topic: topic, Payload: []byte("payload of " + id)}
	if key != "" {
		m.Key = []byte(key)
	}
	return m
}

// numbered are n events with IDs that begin with prefix, of as many keys.
func numbered(prefix string, n, keys int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = eventOf(fmt.Sprintf("%s-%d", prefix, i), fmt.Sprintf("key-%d", i%keys))
	}
	return messages
}

func (f *outboxFixture[Tx]) begin() Tx {
	f.Helper()
	tx, err := f.db.Begin(f.Context())
	if err != nil {
		f.Fatalf("begin: %v", err)
	}
	return tx
}

func (f *outboxFixture[Tx]) commit(tx Tx) {
	f.Helper()
	f.must("commit", f.db.Commit(f.Context(), tx))
}

func (f *outboxFixture[Tx]) must(doing string, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %v", doing, err)
	}
}

func (f *outboxFixture[Tx]) wantIs(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error is %v, want one that is %q", err, want)
	}
}

// appendIn writes events in tx.
func (f *outboxFixture[Tx]) appendIn(tx Tx, messages ...outbox.Message) {
	f.Helper()
	f.must("append", f.store.Append(f.Context(), tx, messages))
}

// append writes events in a transaction of their own.
func (f *outboxFixture[Tx]) append(messages ...outbox.Message) {
	f.Helper()
	tx := f.begin()
	f.appendIn(tx, messages...)
	f.commit(tx)
}

func (f *outboxFixture[Tx]) register(r outbox.Registration) {
	f.Helper()
	f.must("register", f.store.Register(f.Context(), r))
}

func idsOfEvents(events []outbox.Event) []string {
	ids := []string{}
	for _, event := range events {
		ids = append(ids, event.ID)
	}
	return ids
}

func idsOfMessages(messages []outbox.Message) []string {
	ids := []string{}
	for _, message := range messages {
		ids = append(ids, message.ID)
	}
	return ids
}

func (f *outboxFixture[Tx]) wantEvents(got []outbox.Event, want ...string) {
	f.Helper()
	if ids := idsOfEvents(got); !slices.Equal(ids, append([]string{}, want...)) {
		f.Fatalf("events %.500q, want %.500q", ids, want)
	}
}

// instance is a process that runs a relay, as far as the store sees it: what it
// owns, and where it stands.
type instance[Tx any] struct {
	f     *outboxFixture[Tx]
	store outbox.Store[Tx]
	name  string
	relay outbox.Registration
	lease outbox.Lease

	// leaseFor is what it asks for.
	leaseFor time.Duration

	// limit and maxBytes bound each of its reads.
	limit, maxBytes int
}

// start registers the relay and leases what lanes are free.
func (f *outboxFixture[Tx]) start(name string, relay outbox.Registration) *instance[Tx] {
	f.Helper()
	return f.startFor(longLease, name, relay)
}

func (f *outboxFixture[Tx]) startFor(lease time.Duration, name string, relay outbox.Registration) *instance[Tx] {
	f.Helper()
	f.register(relay)
	i := &instance[Tx]{f: f, store: f.store, name: name, relay: relay, leaseFor: lease, limit: 1000, maxBytes: 1 << 22}
	i.renew()
	return i
}

// startElsewhere does it through a store of its own.
func (f *outboxFixture[Tx]) startElsewhere(name string, relay outbox.Registration) *instance[Tx] {
	f.Helper()
	other := &outboxFixture[Tx]{T: f.T, db: f.db, store: f.db.Open(f.T)}
	return other.start(name, relay)
}

// renew prolongs the lease and takes over what the store says of the lanes.
func (i *instance[Tx]) renew() {
	i.f.Helper()
	lease, err := i.store.Lease(i.f.Context(), i.relay.Relay, i.name, i.leaseFor)
	i.f.must("lease", err)
	i.lease = lease
}

func (i *instance[Tx]) lanes() []int { return laneNumbers(i.lease.Lanes) }

func laneNumbers(owned []outbox.OwnedLane) []int {
	numbers := []int{}
	for _, lane := range owned {
		numbers = append(numbers, lane.Lane)
	}
	slices.Sort(numbers)
	return numbers
}

// lane is one that it owns.
func (i *instance[Tx]) lane(number int) *outbox.OwnedLane {
	i.f.Helper()
	for n := range i.lease.Lanes {
		if i.lease.Lanes[n].Lane == number {
			return &i.lease.Lanes[n]
		}
	}
	i.f.Fatalf("%s does not own lane %d", i.name, number)
	return nil
}

// chunk reads once from the lanes, which stand together.
func (i *instance[Tx]) chunk(until outbox.Position, lanes ...int) outbox.Chunk {
	i.f.Helper()
	request := outbox.ReadRequest{
		Relay: i.relay.Relay, Lanes: lanes, AllLanes: i.relay.Lanes, Topics: i.relay.Topics,
		Position: i.lane(lanes[0]).Position, Until: until, Limit: i.limit, MaxBytes: i.maxBytes,
	}
	for _, lane := range lanes {
		if i.lane(lane).Position != request.Position {
			i.f.Fatalf("lanes %v stand at different positions", lanes)
		}
	}
	chunk, err := i.store.Read(i.f.Context(), request)
	i.f.must("read", err)
	for n, event := range chunk.Events {
		switch {
		case n > 0 && chunk.Events[n-1].Number >= event.Number:
			i.f.Fatalf("number %d comes after %d", event.Number, chunk.Events[n-1].Number)
		case !slices.Contains(lanes, event.Lane):
			i.f.Fatalf("event %.20q of lane %d comes with lanes %v", event.ID, event.Lane, lanes)
		}
	}
	if len(chunk.Events) > i.limit {
		i.f.Fatalf("%d events with a limit of %d", len(chunk.Events), i.limit)
	}
	return chunk
}

// move puts lanes at a position, for now in the instance only.
func (i *instance[Tx]) move(to outbox.Position, lanes ...int) {
	for _, lane := range lanes {
		i.lane(lane).Position = to
	}
}

// read reads all there is now, and moves behind it.
func (i *instance[Tx]) read() (events []outbox.Event) {
	i.f.Helper()
	done := map[int]bool{}
	for {
		var group []int // lanes that stand together and have more to read
		for _, lane := range i.lease.Lanes {
			if !done[lane.Lane] && (group == nil || i.lane(group[0]).Position == lane.Position) {
				group = append(group, lane.Lane)
			}
		}
		if group == nil {
			return events
		}
		chunk := i.chunk(outbox.Position{}, group...)
		events = append(events, chunk.Events...)
		i.move(chunk.End, group...)
		for _, lane := range group {
			done[lane] = !chunk.More
		}
	}
}

// progress is where it stands in these lanes, or in all.
func (i *instance[Tx]) progress(lanes ...int) []outbox.LaneProgress {
	var progress []outbox.LaneProgress
	for _, lane := range i.lease.Lanes {
		if len(lanes) == 0 || slices.Contains(lanes, lane.Lane) {
			progress = append(progress, outbox.LaneProgress{OwnedLane: lane})
		}
	}
	return progress
}

// settle saves where it stands, with what else it has done.
func (i *instance[Tx]) settle(aside, done []outbox.Aside) outbox.Settled {
	i.f.Helper()
	return i.settleLanes(i.progress(), aside, done)
}

func (i *instance[Tx]) settleLanes(lanes []outbox.LaneProgress, aside, done []outbox.Aside) outbox.Settled {
	i.f.Helper()
	settled, err := i.store.Settle(i.f.Context(), outbox.Settlement{
		Relay: i.relay.Relay, Instance: i.name, Lanes: lanes, Aside: aside, Done: done,
	})
	i.f.must("settle", err)
	return settled
}

// save is a settle that loses nothing.
func (i *instance[Tx]) save(aside, done []outbox.Aside) outbox.Settled {
	i.f.Helper()
	settled := i.settle(aside, done)
	if len(settled.Lost) != 0 {
		i.f.Fatalf("lanes %v were lost", settled.Lost)
	}
	return settled
}

// catchUp leases, reads all there is and saves that.
func (i *instance[Tx]) catchUp() []outbox.Event {
	i.f.Helper()
	i.renew()
	events := i.read()
	i.save(nil, nil)
	return events
}

// wantCaughtUp fails unless these, and only these, are still to be read, in any order.
func (i *instance[Tx]) wantCaughtUp(want ...string) {
	i.f.Helper()
	got := idsOfEvents(i.catchUp())
	slices.Sort(got)
	sorted := slices.Sorted(slices.Values(want))
	if !slices.Equal(got, append([]string{}, sorted...)) {
		i.f.Fatalf("still to be read are %.500q, want %.500q", got, sorted)
	}
}
