package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/outbox"
)

var errRefused = errors.New("broker says no")

// fixture is a fake store and a broker, with any number of instances of a relay.
// Unless a test says otherwise, the broker acknowledges everything.
type fixture struct {
	*testing.T

	store  *fakeStore
	broker *fakeBroker

	mu      sync.Mutex
	notices []outbox.Notice
	logs    bytes.Buffer
}

// simulate runs a test in a bubble of its own, in which time passes when everybody waits.
func simulate(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		test(&fixture{T: t, store: newFakeStore(), broker: &fakeBroker{}})
	})
}

// fakeBroker records what it is sent.
type fakeBroker struct {
	mu    sync.Mutex
	sent  []outbox.Event
	calls [][]string

	// on is asked for each event; an error refuses it, and those behind it
	// with its key. It may block.
	on func(ctx context.Context, e outbox.Event) error
	// whole, if set, is asked for each call, instead.
	whole func(ctx context.Context, events []outbox.Event) []error
}

func (b *fakeBroker) Publish(ctx context.Context, events []outbox.Event) []error {
	b.mu.Lock()
	on, whole := b.on, b.whole
	b.calls = append(b.calls, idsOf(events))
	b.mu.Unlock()
	if whole != nil {
		return whole(ctx, events)
	}
	results := make([]error, len(events))
	failed := map[string]bool{}
	for i, e := range events {
		key := e.Topic + "\x00" + string(e.Key)
		switch {
		case e.Key != nil && failed[key]:
			results[i] = outbox.ErrBehind
			continue
		case on != nil:
			results[i] = on(ctx, e)
		}
		if results[i] != nil {
			failed[key] = true
			continue
		}
		b.take(e)
	}
	return results
}

func (b *fakeBroker) take(e outbox.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, e)
}

// set changes how the broker behaves while it is used.
func (b *fakeBroker) set(on func(ctx context.Context, e outbox.Event) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = on
}

// ids are those it was sent, in order.
func (b *fakeBroker) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return idsOf(b.sent)
}

func idsOf(events []outbox.Event) []string {
	ids := []string{}
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

// event has an ID that begins with its key: "a1" has the key "a", "-1" has none.
func event(id string) outbox.Message {
	m := outbox.Message{ID: id, Topic: "orders", Payload: []byte("payload of " + id)}
	if key := id[:1]; key != "-" {
		m.Key = []byte(key)
	}
	return m
}

func (f *fixture) append(ids ...string) {
	f.Helper()
	tx := f.store.Begin()
	for _, id := range ids {
		f.appendIn(tx, event(id))
	}
	f.store.Commit(tx)
}

func (f *fixture) appendIn(tx *fakeTx, messages ...outbox.Message) {
	f.Helper()
	if err := outbox.New(f.store).Publish(f.Context(), tx, messages...); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) config() outbox.RelayConfig {
	return outbox.RelayConfig{
		Name: "events", Lanes: 4,
		Logger: slog.New(slog.NewTextHandler(lockedWriter{f}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnNotice: func(n outbox.Notice) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.notices = append(f.notices, n)
		},
	}
}

type lockedWriter struct{ f *fixture }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.f.logs.Write(p)
}

// instance is a relay that runs.
type instance struct {
	*outbox.Relay

	f      *fixture
	cancel context.CancelFunc
	ended  chan error
}

// run starts an instance with the default configuration, which the test may change.
func (f *fixture) run(change ...func(*outbox.RelayConfig)) *instance {
	config := f.config()
	for _, c := range change {
		c(&config)
	}
	ctx, cancel := context.WithCancel(f.Context())
	i := &instance{Relay: outbox.NewRelay(f.store, f.broker, config), f: f, cancel: cancel, ended: make(chan error, 1)}
	go func() { i.ended <- i.Run(ctx) }()
	return i
}

// stop stops it cleanly.
func (i *instance) stop() {
	i.f.Helper()
	i.cancel()
	if err := <-i.ended; err != nil {
		i.f.Fatalf("Run returned %v", err)
	}
	if outages := i.f.noticesOf(outbox.NoticeOutage); len(outages) > 0 && !i.f.store.faulty {
		i.f.Errorf("a store without faults was out: %v", outages[0].Err)
	}
}

func (i *instance) wantEnd(want error) {
	i.f.Helper()
	if err := <-i.ended; !errors.Is(err, want) {
		i.f.Fatalf("Run returned %v, want %v", err, want)
	}
}

// pass lets time pass.
func (f *fixture) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the time of a simulation
	synctest.Wait()
}

// wantSent fails unless the broker was sent these, and only these, in any order of keys.
func (f *fixture) wantSent(want ...string) {
	f.Helper()
	got := f.broker.ids()
	if !slices.Equal(byKey(got), byKey(want)) {
		f.Fatalf("sent %q, want %q", got, want)
	}
}

// byKey sorts IDs by their key, and leaves those of a key as they are.
func byKey(ids []string) []string {
	sorted := append([]string{}, ids...)
	slices.SortStableFunc(sorted, func(a, b string) int {
		if a[0] == '-' && b[0] == '-' {
			return strings.Compare(a, b) // No order is promised.
		}
		return strings.Compare(a[:1], b[:1])
	})
	return sorted
}

func (f *fixture) wantStates(want map[string]outbox.State) {
	f.Helper()
	if got := f.store.states("events"); fmt.Sprint(got) != fmt.Sprint(want) {
		f.Fatalf("set aside are %v, want %v", got, want)
	}
}

func (f *fixture) noticesOf(kind outbox.NoticeKind) (list []outbox.Notice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.notices {
		if n.Kind == kind {
			list = append(list, n)
		}
	}
	return list
}

func (f *fixture) wantNotices(kind outbox.NoticeKind, want int) []outbox.Notice {
	f.Helper()
	got := f.noticesOf(kind)
	if len(got) != want {
		f.Fatalf("%d notices %q, want %d: %+v", len(got), kind, want, got)
	}
	return got
}

// wantSaved fails unless a new owner would find nothing more to publish.
func (f *fixture) wantSaved(change ...func(*outbox.RelayConfig)) {
	f.Helper()
	before := len(f.broker.ids())
	i := f.run(change...)
	f.pass(time.Minute)
	i.stop()
	if after := f.broker.ids(); len(after) != before {
		f.Fatalf("not saved: %q were published again", after[before:])
	}
}

// atomicRate is how often a fault happens.
type atomicRate struct {
	mu   sync.Mutex
	rate float64
}

func (r *atomicRate) set(rate float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate = rate
}

func (r *atomicRate) hits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.Float64() < r.rate
}
