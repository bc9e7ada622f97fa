package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

var errHandler = errors.New("no such account")

// fixture is an inbox over a fake store. Its handler has the message ID as its
// effect, unless a test says otherwise for that ID.
type fixture struct {
	*testing.T

	store *fakeStore
	inbox *inbox.Inbox[*fakeTx]

	mu     sync.Mutex
	calls  [][]string // IDs of each call of the handler
	events []inbox.Event
	logs   bytes.Buffer

	// on is called before the effect; an error is the handler's.
	on func(ctx context.Context, tx *fakeTx, m inbox.Message) error
}

func (f *fixture) options(options []inbox.Option) []inbox.Option {
	logger := slog.New(slog.NewTextHandler(lockedWriter{f}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	hook := func(_ context.Context, event inbox.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, event)
	}
	return append([]inbox.Option{inbox.Logger(logger), inbox.OnEvent(hook)}, options...)
}

type lockedWriter struct{ f *fixture }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return w.f.logs.Write(p)
}

func setup(t *testing.T, options ...inbox.Option) *fixture {
	t.Helper()
	f := &fixture{T: t, store: newFakeStore()}
	f.inbox = inbox.New(f.store, "billing", func(ctx context.Context, tx *fakeTx, m inbox.Message) error {
		f.called(m)
		return f.handle(ctx, tx, m)
	}, f.options(options)...)
	return f
}

func setupBulk(t *testing.T, options ...inbox.Option) *fixture {
	t.Helper()
	f := &fixture{T: t, store: newFakeStore()}
	f.inbox = inbox.NewBulk(f.store, "billing", func(ctx context.Context, tx *fakeTx, ms []inbox.Message) error {
		f.called(ms...)
		for _, m := range ms {
			if err := f.handle(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	}, f.options(options)...)
	return f
}

func (f *fixture) handle(ctx context.Context, tx *fakeTx, m inbox.Message) error {
	if f.on != nil {
		if err := f.on(ctx, tx, m); err != nil {
			return err
		}
	}
	return tx.Do(m.ID)
}

func (f *fixture) called(ms ...inbox.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	f.calls = append(f.calls, ids)
}

// failOn makes the handler fail for these IDs.
func (f *fixture) failOn(err error, ids ...string) {
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if slices.Contains(ids, m.ID) {
			return err
		}
		return nil
	}
}

func message(id string) inbox.Message {
	return inbox.Message{ID: id, Source: "orders", Topic: "orders", Payload: []byte("payload of " + id), Position: "orders/0/" + id}
}

func messages(ids ...string) (ms []inbox.Message) {
	for _, id := range ids {
		ms = append(ms, message(id))
	}
	return ms
}

// keyed are messages "key:id".
func keyed(names ...string) (ms []inbox.Message) {
	for _, name := range names {
		m := message(name)
		key, _, _ := strings.Cut(name, ":")
		m.Key = []byte(key)
		ms = append(ms, m)
	}
	return ms
}

func (f *fixture) process(ms ...inbox.Message) []inbox.Result {
	f.Helper()
	results, err := f.inbox.Process(f.Context(), ms)
	if err != nil {
		f.Fatalf("Process: %v", err)
	}
	return results
}

func outcomes(results []inbox.Result) string {
	var names []string
	for _, r := range results {
		names = append(names, r.Outcome.String())
	}
	return strings.Join(names, ", ")
}

func (f *fixture) wantOutcomes(results []inbox.Result, want string) {
	f.Helper()
	if got := outcomes(results); got != want {
		f.Fatalf("outcomes are %q, want %q; errors %v", got, want, results)
	}
}

func (f *fixture) wantEffects(want ...string) {
	f.Helper()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if !slices.Equal(f.store.effects, want) {
		f.Fatalf("effects are %q, want %q", f.store.effects, want)
	}
}

// wantLetters takes "id reason" of each dead letter.
func (f *fixture) wantLetters(want ...string) {
	f.Helper()
	letters, err := f.inbox.DeadLetters(context.Background(), inbox.Filter{})
	if err != nil {
		f.Fatal(err)
	}
	var got []string
	for _, letter := range letters {
		got = append(got, letter.Message.ID+" "+string(letter.Reason))
	}
	if !slices.Equal(got, want) {
		f.Fatalf("dead letters are %q, want %q", got, want)
	}
}

func (f *fixture) wantCalls(want ...string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []string
	for _, ids := range f.calls {
		got = append(got, strings.Join(ids, "+"))
	}
	if !slices.Equal(got, want) {
		f.Fatalf("handler calls are %q, want %q", got, want)
	}
}

func (f *fixture) attempts(id string) int {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.store.attempts["billing/orders\x00"+id]
}

func (f *fixture) wantEvents(kind inbox.EventKind, want int) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, event := range f.events {
		if event.Kind == kind {
			n += event.Count
		}
	}
	if n != want {
		f.Fatalf("%d events %q, want %d: %s", n, kind, want, fmt.Sprint(f.events))
	}
}

func wantError(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
}

const day = 24 * time.Hour
