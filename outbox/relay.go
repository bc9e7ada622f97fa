package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// Relay publishes the events of a log. Any number of processes may run relays of
// one name: they share its lanes.
type Relay struct {
	RelayConfig

	store     RelayStore
	publisher Publisher
	invalid   error

	report  *reporter
	running atomic.Bool
	wake    chan struct{}
}

// NewRelay returns a relay that reads the log of store, which needs none of its
// transactions, and publishes to publisher. A bad argument or field is reported by Run
// and Check.
func NewRelay(store RelayStore, publisher Publisher, config RelayConfig) *Relay {
	config = config.withDefaults()
	r := &Relay{RelayConfig: config, store: store, publisher: publisher, report: newReporter(config), wake: make(chan struct{}, 1)}
	r.invalid = r.validate(store != nil, publisher)
	return r
}

var errRelayNotMade = errors.New("outbox: this *Relay is nil or empty: make it with outbox.NewRelay")

func (r *Relay) unusable() error {
	if r == nil || r.store == nil && r.invalid == nil {
		return errRelayNotMade
	}
	return r.invalid
}

// Check returns nil if the configuration is valid, and the store answers and is
// migrated. It does not ask the publisher.
func (r *Relay) Check(ctx context.Context) error {
	if err := r.unusable(); err != nil {
		return err
	}
	return r.store.Check(ctx)
}

// Wake has Run look for new events at once, for whoever knows that some were
// committed. It never blocks.
func (r *Relay) Wake() {
	if r == nil || r.wake == nil {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default: // It has not looked since it was woken.
	}
}

// Run publishes until ctx ends, and then stops cleanly: calls of the publisher that
// are under way get StopTimeout to end, what they acknowledged is saved, and the lanes
// are free for other instances. It returns nil then, or an error if something could
// not be saved or the publisher did not return.
//
// A bad configuration, other settings than those recorded (ErrSettings), a log that
// cannot be read in order (ErrLog) and a store that is not migrated are errors
// at once. A store that cannot be reached is waited for, at the start as later. If the
// relay is removed while this instance has no lease, Run ends with ErrNoRelay.
//
// One Relay runs once at a time. It may run again.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.unusable(); err != nil {
		return err
	}
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("outbox: relay %q runs already: run each *Relay once at a time, and make another one for another instance", r.Name)
	}
	defer r.running.Store(false)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newInstance(ctx, r)
	if err := in.begin(); err != nil || ctx.Err() != nil {
		return err
	}
	// The lease outlives ctx, until its lanes are drained.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	var helpers sync.WaitGroup
	helpers.Go(func() { in.lease.run(background) })
	helpers.Go(func() { r.prune(ctx, background) })
	raised, unlisten := r.store.Appended().Listen()

	err := in.run(raised)
	cancel() // if it did not end by that
	unlisten()
	err = errors.Join(err, in.stop())
	end()
	helpers.Wait()
	in.leave()
	return err
}

// maxRegister bounds what a Register may take, see register.
const maxRegister = time.Hour

// register gives a try twice the time of the one before, if that was cut off while the
// store answers other questions: one that adopts a large log, which may take minutes, is not
// cut off again and again, and one that hangs is given up soon each time.
func (in *instance) register(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, in.patience)
	err := in.store.Register(call, in.registration())
	cutOff := err != nil && call.Err() != nil
	cancel()
	if cutOff && in.answers(ctx) {
		in.patience = min(2*in.patience, maxRegister)
	} else {
		in.patience = storeTimeout
	}
	return err
}

func (in *instance) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := in.store.Check(ctx)
	return err == nil || !isOutage(err)
}

// begin registers the relay, and waits for a store that cannot be reached.
func (in *instance) begin() error {
	for in.ctx.Err() == nil {
		err := in.register(in.ctx)
		switch {
		case err == nil:
			in.storeOut.end(in)
			return nil
		case in.ctx.Err() != nil:
			return nil //nolint:nilerr // a clean stop
		case !isOutage(err):
			return fmt.Errorf("outbox: registering relay %q: %w", in.Name, err)
		}
		in.storeOut.fail(in, fmt.Errorf("registering: %w", err), time.Now())
		timer := time.NewTimer(time.Until(in.storeOut.retryAt))
		select {
		case <-in.ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// isOutage: waiting may help.
func isOutage(err error) bool {
	for _, outage := range [...]error{
		idempotency.ErrUnavailable, idempotency.ErrCommitUnknown, idempotency.ErrConflict, idempotency.ErrInProgress,
		ErrRestored, context.DeadlineExceeded,
	} {
		if errors.Is(err, outage) {
			return true
		}
	}
	return false
}

func (r *Relay) registration() Registration {
	return Registration{Relay: r.Name, Lanes: r.Lanes, Topics: r.Topics, Policy: r.Policy, Retention: r.Retention, FromNow: r.FromNow}
}
