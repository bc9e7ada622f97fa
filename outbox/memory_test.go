package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/onceward/onceward/outbox"
)

// A slow call holds up others neither by what waits for it nor by its size.
func TestSlowCallsLeaveRoom(t *testing.T) {
	const lanes = 16 // Every fourth one waits for the same calls.
	keysOf := map[int][]byte{}
	for key := byte('a'); key <= 'z'; key++ {
		lane := laneOf(&fakeEvent{Event: outbox.Event{Message: event(string(key))}}, lanes)
		keysOf[lane%4] = append(keysOf[lane%4], key)
	}
	slowly := func(stripes ...int) func(ctx context.Context, e outbox.Event) error {
		return func(ctx context.Context, e outbox.Event) error {
			for _, s := range stripes {
				if e.Lane%4 == s {
					pause(ctx, 20*time.Second)
				}
			}
			return nil
		}
	}
	some := func(n int, key byte) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprintf("%c%d", key, i))
		}
		return ids
	}
	fast := fmt.Sprintf("%c0", keysOf[3][0])
	for name, events := range map[string]func(f *fixture){
		"calls with more bytes than half a batch": func(f *fixture) {
			f.broker.on = slowly(0, 1, 2)
			for stripe := range 3 {
				f.append(some(20, keysOf[stripe][0])...)
			}
		},
		"other lanes that wait for the call": func(f *fixture) {
			f.broker.on = slowly(0)
			f.append(some(1, keysOf[0][0])...)
			f.pass(time.Second)
			for _, key := range keysOf[0][1:] {
				f.append(some(40, key)...)
			}
		},
		"events of the call that were sorted out": func(f *fixture) {
			f.broker.on = slowly(0)
			tx := f.store.Begin()
			for n := range 100 {
				m := event(fmt.Sprintf("%c%d", keysOf[0][0], n))
				if n > 0 {
					m.DeliverAfter = time.Now().Add(time.Hour)
				}
				f.appendIn(tx, m)
			}
			f.store.Commit(tx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				i := f.run(func(c *outbox.RelayConfig) {
					c.Lanes, c.Batch, c.BatchBytes, c.PublishTimeout = lanes, 20, 200, time.Hour
				})
				f.pass(time.Second)
				events(f)
				f.pass(time.Second)
				f.append(fast)
				f.pass(10 * time.Second)
				f.wantSent(fast)
				f.broker.set(nil)
				f.pass(10 * time.Minute)
				i.stop()
			})
		})
	}
}

// payloadStore gives each event that is read a payload of its own, as a database
// does, and knows those that are still referred to.
type payloadStore struct {
	*fakeStore

	payloads []weak.Pointer[[4096]byte]
}

func (s *payloadStore) Read(ctx context.Context, r outbox.ReadRequest) (outbox.Chunk, error) {
	c, err := s.fakeStore.Read(ctx, r)
	for i := range c.Events {
		payload := new([4096]byte)
		s.payloads = append(s.payloads, weak.Make(payload))
		c.Events[i].Payload = payload[:]
	}
	return c, err
}

// What was read for a lane in a slow call does not keep what was read with it.
func TestPublishedEventsAreNotKept(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.whole = func(ctx context.Context, events []outbox.Event) []error { // which keeps none
			if slices.ContainsFunc(events, func(e outbox.Event) bool { return e.Key[0] == 'a' }) {
				pause(ctx, 20*time.Second)
			}
			return make([]error, len(events))
		}
		store := &payloadStore{fakeStore: f.store}
		config := f.config()
		config.Lanes = 16
		ctx, cancel := context.WithCancel(f.Context())
		ended := make(chan error, 1)
		go func() { ended <- outbox.NewRelay(store, f.broker, config).Run(ctx) }()
		for n := range 20 {
			ids := []string{fmt.Sprintf("a%d", n)}
			for i := range 90 {
				ids = append(ids, fmt.Sprintf("b%d-%d", n, i))
			}
			f.append(ids...)
			f.pass(100 * time.Millisecond)
		}
		runtime.GC()
		kept := 0
		for _, payload := range store.payloads {
			if payload.Value() != nil {
				kept++
			}
		}
		if kept > 200 || len(store.payloads) < 1820 {
			f.Errorf("%d payloads are kept of %d that were read; 20 events are still to be published", kept, len(store.payloads))
		}
		cancel()
		if err := <-ended; err != nil {
			f.Fatal(err)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var ids []string
		for n := range 500 {
			ids = append(ids, fmt.Sprintf("%c%d", 'a'+n%20, n))
		}
		f.append(ids...)
		var read atomic.Int32
		f.store.faults(func(_ context.Context, statement string) error {
			if statement == "Read" {
				read.Add(1)
			}
			return nil
		}, nil)
		i := f.run(func(c *outbox.RelayConfig) { c.Batch = 50 })
		f.pass(5 * time.Second)
		if n := read.Load(); n > 3 {
			f.Errorf("%d reads of 50 events, while nothing is acknowledged", n)
		}
		i.stop()
	})
}

// A store reads what it is asked for before it knows what fits into BatchBytes.
func TestNoMoreEventsAreAskedForThanFit(t *testing.T) {
	simulate(t, func(f *fixture) {
		const batch, batchBytes = 1000, 200_000
		publish := func(payload int) (last outbox.ReadRequest) {
			tx := f.store.Begin()
			for n := range 3000 {
				m := event(fmt.Sprintf("a%d-%d", payload, n))
				m.Payload = make([]byte, payload)
				f.appendIn(tx, m)
			}
			f.store.Commit(tx)
			f.pass(10 * time.Second)
			return f.store.requests[len(f.store.requests)-1]
		}
		i := f.run(func(c *outbox.RelayConfig) { c.Batch, c.BatchBytes = batch, batchBytes })
		if limit := publish(10).Limit; limit != batch {
			f.Errorf("%d small events are asked for, not %d", limit, batch)
		}
		if limit := publish(1000).Limit; limit < 150 || limit > 200 {
			f.Errorf("%d events of 1 kB are asked for: %d bytes hold fewer than 200", limit, batchBytes)
		}
		if limit := publish(10_000).Limit; limit != 64 {
			f.Errorf("%d events of 10 kB are asked for, not the least number", limit)
		}
		if limit := publish(10).Limit; limit != batch {
			f.Errorf("%d small events are asked for once the large ones have gone, not %d", limit, batch)
		}
		i.stop()
		if n := len(f.broker.ids()); n != 12_000 {
			f.Errorf("%d were sent", n)
		}
	})
}

// Lanes that wait, for an event or for their destination, leave the memory to others.
func TestLanesThatWaitLeaveTheMemoryToOthers(t *testing.T) {
	for name, err := range map[string]error{"blocked": errRefused, "paused": outbox.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.refuse(err, "a0")
				var ids, others []string
				for n := range 400 {
					ids = append(ids, fmt.Sprintf("a%d", 2*n), fmt.Sprintf("a%d", 2*n+1), fmt.Sprintf("b%d", n))
					others = append(others, fmt.Sprintf("b%d", n))
				}
				f.append(ids...)
				small := func(c *outbox.RelayConfig) {
					c.Lanes, c.Batch, c.MaxAttempts = 16, 20, 1000
					c.BackoffMin, c.BackoffMax = time.Minute, time.Minute
				}
				i := f.run(small)
				f.pass(time.Second)
				f.wantSent(others...)
				f.broker.set(nil)
				f.pass(5 * time.Minute)
				f.wantSent(ids...)
				i.stop()
				f.wantSaved(small)
			})
		})
	}
}
