package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// recorder is a publisher that writes events down one by one, and takes a moment for some.
type recorder struct {
	journal *journal

	mu     sync.Mutex
	random *rand.Rand
}

func newRecorder(seed uint64) *recorder {
	return &recorder{journal: newJournal(), random: newRandom(seed)}
}

func (r *recorder) Publish(ctx context.Context, events []outbox.Event) []error {
	results := make([]error, len(events))
	r.dawdle(ctx)
	for i, e := range events {
		if ctx.Err() != nil {
			results[i] = fmt.Errorf("%w: %w", outbox.ErrUnavailable, ctx.Err())
			continue
		}
		r.journal.write(e.ID)
	}
	r.dawdle(ctx)
	return results
}

func (r *recorder) dawdle(ctx context.Context) {
	r.mu.Lock()
	d := time.Duration(r.random.Int64N(int64(2 * time.Millisecond)))
	r.mu.Unlock()
	pause(ctx, d)
}

// life is all that an instance of a relay sees of the world: the store and the publisher. It can end at any step, as if
// the process had died: nothing more reaches the world. It can stop for a while, as if the process was frozen: then each step, also one
// that is under way, goes on where it was when it is over.
type life struct {
	outbox.RelayStore

	publisher outbox.Publisher

	mu    sync.Mutex
	dead  bool
	awake chan struct{} // closed while it is not frozen
	left  int           // steps until the blow; negative: none is planned
	blow  func()
}

func newLife(store outbox.RelayStore, publisher outbox.Publisher) *life {
	awake := make(chan struct{})
	close(awake)
	return &life{RelayStore: store, publisher: publisher, awake: awake, left: -1}
}

// plan has a blow strike at the n-th step from now.
func (l *life) plan(n int, blow func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left, l.blow = n, blow
}

func (l *life) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// freeze stops the instance until thaw is called.
func (l *life) freeze() (thaw func()) {
	awake := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = awake
	return sync.OnceFunc(func() { close(awake) })
}

// step is passed before and after everything that the instance does to the world.
func (l *life) step() error {
	l.mu.Lock()
	var blow func()
	if l.left == 0 {
		blow = l.blow
	}
	l.left = max(l.left-1, -1)
	l.mu.Unlock()
	if blow != nil {
		blow()
	}
	l.mu.Lock()
	awake := l.awake
	l.mu.Unlock()
	<-awake
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return fmt.Errorf("%w: this instance has died", idempotency.ErrUnavailable)
	}
	return nil
}

// around carries out one call between two steps.
func around[T any](l *life, call func() (T, error)) (result T, err error) {
	if err = l.step(); err != nil {
		return result, err
	}
	got, err := call()
	if died := l.step(); died != nil {
		return result, died
	}
	return got, err
}

func (l *life) Lease(ctx context.Context, relay, instance string, lease time.Duration) (outbox.Lease, error) {
	return around(l, func() (outbox.Lease, error) { return l.RelayStore.Lease(ctx, relay, instance, lease) })
}

func (l *life) Leave(ctx context.Context, relay, instance string) error {
	_, err := around(l, func() (struct{}, error) { return struct{}{}, l.RelayStore.Leave(ctx, relay, instance) })
	return err
}

func (l *life) Held(ctx context.Context, relay string, lanes []int) ([]outbox.Aside, error) {
	return around(l, func() ([]outbox.Aside, error) { return l.RelayStore.Held(ctx, relay, lanes) })
}

func (l *life) Read(ctx context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	return around(l, func() (outbox.Chunk, error) { return l.RelayStore.Read(ctx, r) })
}

func (l *life) Due(ctx context.Context, relay string, lanes []int, limit, maxBytes int) (outbox.Due, error) {
	return around(l, func() (outbox.Due, error) { return l.RelayStore.Due(ctx, relay, lanes, limit, maxBytes) })
}

func (l *life) Settle(ctx context.Context, s outbox.Settlement) (outbox.Settled, error) {
	return around(l, func() (outbox.Settled, error) { return l.RelayStore.Settle(ctx, s) })
}

// Publish passes steps around each event, so that a blow can strike between two.
func (l *life) Publish(ctx context.Context, events []outbox.Event) []error {
	return oneByOne(events, func(e outbox.Event) error {
		err := l.step()
		if err == nil {
			// A frozen process does not notice that its time is over before it has sent what it was about to send.
			result := l.publisher.Publish(context.WithoutCancel(ctx), []outbox.Event{e})[0]
			if err = l.step(); err == nil {
				return result
			}
		}
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	})
}

// oneByOne publishes events as a publisher must: none whose topic and key are those of one that failed.
func oneByOne(events []outbox.Event, publish func(outbox.Event) error) []error {
	type line struct{ topic, key string }
	failed := map[line]bool{}
	results := make([]error, len(events))
	for i, e := range events {
		of := line{e.Topic, string(e.Key)}
		if e.Key != nil && failed[of] {
			results[i] = outbox.ErrBehind
			continue
		}
		results[i] = publish(e)
		failed[of] = results[i] != nil
	}
	return results
}

// instance is a running relay.
type instance struct {
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, once it has ended
}

// startRelay runs a relay until it is stopped.
func startRelay(store outbox.RelayStore, publisher outbox.Publisher, config outbox.RelayConfig) *instance {
	ctx, cancel := context.WithCancel(context.Background())
	i := &instance{cancel: cancel, ended: make(chan struct{})}
	relay := outbox.NewRelay(store, publisher, config)
	go func() {
		defer close(i.ended)
		i.err = relay.Run(ctx)
	}()
	return i
}

// stop ends a relay cleanly.
func (i *instance) stop(t testing.TB) {
	t.Helper()
	i.cancel()
	if err := i.end(t); err != nil {
		t.Errorf("the relay ended with %v, want a clean stop", err)
	}
}

// end waits for Run to return.
func (i *instance) end(t testing.TB) error {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-i.ended:
		return i.err
	case <-timer.C:
		t.Fatalf("Run did not return within %v", patience)
		return nil
	}
}
