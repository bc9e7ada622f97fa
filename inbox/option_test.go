package inbox_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

func TestBadConfigurationIsReportedByCheckAndProcessWithFieldAndFix(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *fakeTx, inbox.Message) error { return nil }
	store := newFakeStore()
	for want, in := range map[string]*inbox.Inbox[*fakeTx]{
		"consumer name of 0 bytes":   inbox.New(store, "", nothing),
		"consumer name of 101 bytes": inbox.New(store, strings.Repeat("b", 101), nothing),
		"[A-Za-z0-9._-]{1,100}":      inbox.New(store, "a/b", nothing),
		"handler is nil":             inbox.New(store, "billing", nil),
		"handler is nil: pass":       inbox.NewBulk(store, "billing", nil),
		"store is nil":               inbox.New(nil, "billing", nothing),
		"Batch(0)":                   inbox.New(store, "billing", nothing, inbox.Batch(0)),
		"MaxAttempts(0)":             inbox.New(store, "billing", nothing, inbox.MaxAttempts(0)),
		"Backoff(2s, 1s)":            inbox.New(store, "billing", nothing, inbox.Backoff(2*time.Second, time.Second)),
		"Backoff(0s, 1s)":            inbox.New(store, "billing", nothing, inbox.Backoff(0, time.Second)),
		"Backoff(1ns, 2ns): pass a minimum of at least a millisecond": inbox.New(store, "billing", nothing, inbox.Backoff(1, 2)),
		"HandlerTimeout(0s)": inbox.New(store, "billing", nothing, inbox.HandlerTimeout(0)),
		"HandlerTimeout(30ns): pass at least a millisecond": inbox.New(store, "billing", nothing, inbox.HandlerTimeout(30)),
		"Retention(14ns): pass at least a minute":           inbox.New(store, "billing", nothing, inbox.Retention(14)),
		"at most 100 years":                                 inbox.New(store, "billing", nothing, inbox.Retention(math.MaxInt64)),
	} {
		wantUnusable(t, in, want)
	}
}

// A nil *Inbox is no nil Processor, so an adapter calls it.
func TestNilAndEmptyInboxesAreReported(t *testing.T) {
	t.Parallel()
	wantUnusable(t, nil, "nil or empty: make it with inbox.New")
	wantUnusable(t, &inbox.Inbox[*fakeTx]{}, "nil or empty: make it with inbox.New")
}

func wantUnusable(t *testing.T, in *inbox.Inbox[*fakeTx], want string) {
	t.Helper()
	check := in.Check(t.Context())
	if check == nil || !strings.Contains(check.Error(), want) {
		t.Errorf("Check says %v, want %q", check, want)
	}
	results, err := in.Process(t.Context(), messages("a"))
	if err == nil || err.Error() != check.Error() || len(results) != 1 || results[0].Outcome != inbox.NotRun {
		t.Errorf("Process returns %v, %v", results, err)
	}
	if _, err := in.Redrive(t.Context(), inbox.Filter{}, inbox.Apply); err == nil {
		t.Error("Redrive goes on")
	}
	if _, err := in.Discard(t.Context(), inbox.Filter{}, inbox.Apply); err == nil {
		t.Error("Discard goes on")
	}
	if _, err := in.DeadLetters(t.Context(), inbox.Filter{}); err == nil {
		t.Error("DeadLetters goes on")
	}
	in.Maintain(t.Context()) // returns
	if stats := in.Stats(); stats.Outages != 0 {
		t.Errorf("%+v", stats)
	}
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := inbox.New[*fakeTx](nil, "", nil, inbox.Batch(-1)).Check(t.Context())
	for _, want := range []string{"store", "consumer", "handler", "Batch(-1)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestGoodConfigurationPassesCheck(t *testing.T) {
	t.Parallel()
	var processor inbox.Processor = setup(t, inbox.Logger(nil), nil,
		inbox.HandlerTimeout(time.Millisecond), inbox.Backoff(time.Millisecond, time.Millisecond)).inbox
	if err := processor.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
