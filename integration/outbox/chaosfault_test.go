package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/outbox"
)

var errRefused = errors.New("refused")

// fickle is a publisher that fails now and then. It says so, but has written the event or not.
type fickle struct {
	*recorder

	refuses bool // some events, for good
	calm    atomic.Bool
}

func (f *fickle) Publish(ctx context.Context, events []outbox.Event) []error {
	return oneByOne(events, func(e outbox.Event) error {
		const often = 40
		f.mu.Lock()
		mood := f.random.IntN(often)
		f.mu.Unlock()
		if mood%8 == 7 { // at times, or little would be published
			f.dawdle(ctx)
		}
		if f.calm.Load() {
			mood = often
		}
		switch {
		case mood == 0:
			return outbox.ErrUnavailable
		case mood == 1:
			return errRefused
		case mood == 2 && f.refuses:
			return outbox.ErrPermanent
		}
		f.journal.write(e.ID)
		switch mood {
		case 3:
			return outbox.ErrUnavailable
		case 4:
			return errRefused
		}
		return nil
	})
}

// lateLeases is a store whose leases are late, and carried out even if nobody waits for them any more, until their deadline: a server goes
// on with what its client has given up. One instance has it.
type lateLeases struct {
	outbox.RelayStore

	random   *rand.Rand
	underWay sync.WaitGroup
}

func (s *lateLeases) Lease(ctx context.Context, relay, instance string, lease time.Duration) (outbox.Lease, error) {
	late := time.Duration(s.random.Int64N(int64(100 * time.Millisecond)))
	var owned outbox.Lease
	var err error
	done := make(chan struct{})
	s.underWay.Go(func() {
		defer close(done)
		deadline, _ := ctx.Deadline()
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
		pause(ctx, late)
		owned, err = s.RelayStore.Lease(ctx, relay, instance, lease)
	})
	select {
	case <-done:
		return owned, err
	case <-ctx.Done():
		return outbox.Lease{}, ctx.Err()
	}
}
