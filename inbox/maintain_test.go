package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/inbox"
)

// maintain runs Maintain for a while of fake time.
func (f *fixture) maintain(d time.Duration) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), d)
	defer cancel()
	f.inbox.Maintain(ctx)
	if got := context.Cause(ctx); got == nil {
		f.Fatal("Maintain returned before its context ended")
	}
}

func TestMaintainPrunesInBoundedBatchesUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.store.expired = 2500
		f.maintain(5 * time.Minute) // the first time only
		if f.store.expired != 0 || f.inbox.Stats().Pruned != 2500 {
			t.Errorf("%d left, %+v", f.store.expired, f.inbox.Stats())
		}
		f.wantEvents(inbox.EventPruned, 2500)
		if n := f.store.prunes; n != 3 {
			t.Errorf("%d deletions", n)
		}
	})
}

func TestMaintainPausesAHundredthOfTheRetention(t *testing.T) {
	t.Parallel()
	for retention, pause := range map[time.Duration]time.Duration{
		14 * day:          10 * time.Minute,
		100 * time.Minute: time.Minute,
		time.Minute:       10 * time.Second,
	} {
		t.Run(retention.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.Retention(retention))
				f.maintain(300 * pause)
				if n := f.store.prunes; n < 250 || n > 350 {
					t.Errorf("%d times in 300 pauses of %v", n, pause)
				}
			})
		})
	}
}

func TestProcessThatLivesForSecondsPrunesToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.store.expired = 10
		f.maintain(5 * time.Second)
		if f.store.expired != 0 {
			t.Error("nothing was pruned")
		}
	})
}

func TestMaintainTriesAgainAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.store.expired = 10
		f.store.pruneFaults = []error{errors.New("disk is full")}
		f.maintain(time.Hour)
		if f.store.expired != 0 {
			t.Error("it gave up")
		}
		if !strings.Contains(f.logs.String(), "disk is full") {
			t.Errorf("not logged: %s", f.logs.String())
		}
	})
}
