package inbox_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func (f *fixture) wantOutage() {
	f.Helper()
	_, err := f.inbox.Process(f.Context(), messages("a"))
	wantError(f.T, err, idempotency.ErrUnavailable)
}

// logged counts lines of a level that contain text.
func (f *fixture) logged(level slog.Level, text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for line := range strings.Lines(f.logs.String()) {
		if strings.Contains(line, "level="+level.String()+" ") && strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func TestOutageIsSaidWhenItBeginsAndWhenItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		for round := 1; round <= 2; round++ {
			f.store.beginFaults = []error{idempotency.ErrUnavailable, idempotency.ErrUnavailable, idempotency.ErrUnavailable}
			for range 3 {
				f.wantOutage()
				<-time.After(time.Second)
			}
			f.process(message("a"))
			f.process(message("b"))
			f.wantEvents(inbox.EventOutage, 3*round)
			if n := f.inbox.Stats().Outages; n != int64(3*round) {
				t.Errorf("%d outages in the stats", n)
			}
			for level, want := range map[slog.Level]int{slog.LevelError: round, slog.LevelDebug: 2 * round} {
				if n := f.logged(level, "store is out"); n != want {
					t.Errorf("round %d: %d lines %v, want %d", round, n, level, want)
				}
			}
			if n := f.logged(slog.LevelInfo, `msg="inbox: store is back" consumer=billing count=3 took=3s`); n != round {
				t.Errorf("round %d: the end is said %d times:\n%s", round, n, f.logs.String())
			}
			f.wantEvents(inbox.EventRecovered, 3*round) // its count is the calls
		}
	})
}

func TestRedriveNotesAnOutageAndItsEnd(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.store.listFaults = []error{idempotency.ErrUnavailable, idempotency.ErrUnavailable}
	for range 2 {
		_, err := f.inbox.Discard(t.Context(), inbox.Filter{}, inbox.DryRun)
		wantError(t, err, idempotency.ErrUnavailable)
	}
	f.redrive(inbox.Filter{}, inbox.RedriveResult{})
	if errs, infos := f.logged(slog.LevelError, "store is out"), f.logged(slog.LevelInfo, "store is back"); errs != 1 || infos != 1 {
		t.Errorf("said %d and %d times", errs, infos)
	}
}

// Calls of several partitions overlap: one that began before the outage and ends
// well after it has begun is no recovery.
func TestCallFromBeforeAnOutageDoesNotEndIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		release := make(chan struct{})
		f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
			if m.ID == "slow" {
				<-release
			}
			return nil
		}
		go func() { _, _ = f.inbox.Process(t.Context(), messages("slow")) }() // judged by its event
		synctest.Wait()
		<-time.After(time.Second)
		f.store.beginFaults = []error{idempotency.ErrUnavailable}
		f.wantOutage()
		close(release)
		synctest.Wait()
		f.wantEvents(inbox.EventProcessed, 1)
		f.wantEvents(inbox.EventRecovered, 0)
		<-time.After(time.Second)
		f.process(message("a"))
		f.wantEvents(inbox.EventRecovered, 1)
	})
}
