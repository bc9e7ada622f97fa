package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

func TestInstancesShareTheLanesEvenly(t *testing.T) {
	simulate(t, func(f *fixture) {
		first := f.run()
		f.pass(time.Second)
		f.wantOwned(4)
		second := f.run()
		f.pass(10 * time.Second)
		f.wantOwned(2, 2)
		third := f.run()
		f.pass(20 * time.Second)
		f.wantOwned(1, 1, 2)
		f.append("a1", "b1", "c1", "d1", "e1", "f1")
		f.pass(2 * time.Second)
		second.stop()
		f.pass(10 * time.Second)
		f.wantOwned(2, 2)
		f.append("a2", "b2", "c2", "d2", "e2", "f2")
		f.pass(2 * time.Second)
		f.wantSent("a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2", "e1", "e2", "f1", "f2")
		first.stop()
		third.stop()
		f.wantOwned()
		f.wantSaved()
	})
}

// wantOwned fails unless the instances own so many lanes, in any order of names.
func (f *fixture) wantOwned(want ...int) {
	f.Helper()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	owned := map[string]int{}
	for _, l := range f.store.relays["events"].lanes {
		if l.owner != "" {
			owned[l.owner]++
		}
	}
	counts := []int{}
	for _, n := range owned {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	if !slices.Equal(counts, append([]int{}, want...)) {
		f.Fatalf("lanes are owned as %v, want %v", counts, want)
	}
}

func TestLanesThatAreHandedOverAreDrainedFirst(t *testing.T) {
	simulate(t, func(f *fixture) {
		var slow atomic.Bool
		slow.Store(true)
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			if slow.Load() {
				pause(ctx, 20*time.Second)
			}
			return nil
		}
		f.append("a1", "b1", "c1", "d1", "a2")
		first := f.run()
		f.pass(time.Second)
		second := f.run()
		f.pass(8 * time.Second)
		f.wantOwned(4) // The first one is still publishing.
		slow.Store(false)
		f.pass(time.Minute)
		f.wantOwned(2, 2)
		f.wantSent("a1", "a2", "b1", "c1", "d1")
		first.stop()
		second.stop()
	})
}

// A paused machine: nothing reaches the store for longer than the lease, while the
// publisher works.
func TestPublishingStopsWhenTheLeaseMayBeOver(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		var out atomic.Bool
		f.store.faults(func(_ context.Context, statement string) error {
			if out.Load() && statement == "Lease" {
				return idempotency.ErrUnavailable
			}
			return nil
		}, nil)
		out.Store(true)
		f.pass(11 * time.Second)
		f.append("a1")
		f.pass(10 * time.Second)
		f.wantSent()
		out.Store(false)
		f.pass(10 * time.Second)
		f.wantSent("a1")
		i.stop()
	})
}

func TestCallsEndWithTheLease(t *testing.T) {
	simulate(t, func(f *fixture) {
		ended := make(chan error, 10)
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
		i := f.run()
		f.pass(time.Second)
		f.append("a1")
		f.pass(2 * time.Second)
		f.store.faults(func(_ context.Context, statement string) error {
			if statement == "Lease" {
				return idempotency.ErrUnavailable
			}
			return nil
		}, nil)
		began := time.Now()
		if err := <-ended; err == nil {
			f.Error("the context did not end")
		}
		if took := time.Since(began); took > 10*time.Second {
			f.Errorf("the call went on for %v", took)
		}
		f.store.faults(nil, nil)
		i.stop()
	})
}

// An instance that wakes after others have taken its lanes saves nothing.
func TestZombieSavesNothing(t *testing.T) {
	simulate(t, func(f *fixture) {
		release := make(chan struct{})
		var calls atomic.Int32
		f.broker.on = func(context.Context, outbox.Event) error {
			if calls.Add(1) == 1 {
				<-release
			}
			return nil
		}
		f.append("a1", "a2")
		zombie := f.run(blockLane)
		f.pass(time.Second)
		// It does not notice: its lane is taken from it by an operator.
		if err := f.store.operate(f.Context(), "Expire", "events", func(r *fakeRelay) { clear(r.instances) }); err != nil {
			f.Fatal(err)
		}
		other := f.run(blockLane)
		f.pass(time.Second)
		f.wantSent("a1", "a2")
		f.append("a3")
		f.pass(time.Second)
		close(release)
		f.pass(100 * time.Millisecond)
		// What it still publishes are copies, in order.
		if got := firstOf(f.broker.ids()); !slices.Equal(got, []string{"a1", "a2", "a3"}) || len(f.broker.ids()) == 3 {
			f.Errorf("sent %q", f.broker.ids())
		}
		f.wantNotices(outbox.NoticeLost, 1)
		zombie.stop()
		other.stop()
		f.wantSaved(blockLane)
	})
}

func TestOperatorsChangeReachesTheOwner(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1", "a2", "a3")
		f.refuse(outbox.ErrUnavailable, "a1")
		i := f.run()
		f.pass(time.Second)
		if err := f.store.Skip(f.Context(), "events", 1); err != nil {
			f.Fatal(err)
		}
		f.pass(time.Minute)
		f.wantSent("a2", "a3")
		if notice := f.wantNotices(outbox.NoticeSkipped, 1)[0]; notice.ID != "a1" {
			f.Errorf("notice %+v", notice)
		}
		f.wantStates(map[string]outbox.State{})
		if err := f.store.Replay(f.Context(), "events", 2); err != nil {
			f.Fatal(err)
		}
		f.pass(time.Minute)
		f.wantSent("a2", "a3", "a2", "a3")
		i.stop()
		f.wantSaved()
	})
}

// The instance can't tell why: its epoch is not the lane's any more.
func TestLostLanesAreNotPutDownToALeaseAlone(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		if err := f.store.Replay(f.Context(), "events", 1); err != nil {
			f.Fatal(err)
		}
		f.pass(time.Minute)
		if lost, taken := f.wantNotices(outbox.NoticeLost, 1)[0], f.wantNotices(outbox.NoticeTaken, 2)[1]; lost.Count != 4 || taken.Count != 4 {
			f.Errorf("lost are %+v, taken %+v", lost, taken)
		}
		if logs := f.logs.String(); !strings.Contains(logs, "lanes lost, because the lease was over or an operation changed them") {
			f.Errorf("log:\n%s", logs)
		}
		i.stop()
	})
}

func TestRunEndsWhenItsRelayIsRemoved(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		if err := f.store.Remove(f.Context(), "events"); err != nil {
			f.Fatal(err)
		}
		i.wantEnd(outbox.ErrNoRelay)
	})
}

func TestRunEndsWhenItsRelayHasOtherLanes(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		f.store.mu.Lock()
		f.store.relays["events"].lanes = append(f.store.relays["events"].lanes, fakeLane{})
		f.store.mu.Unlock()
		i.wantEnd(outbox.ErrSettings)
	})
}

func TestRunRefusesAtOnce(t *testing.T) {
	for _, refusal := range []error{outbox.ErrSettings, outbox.ErrLog, idempotency.ErrNotMigrated, context.Canceled} {
		t.Run(fmt.Sprint(refusal), func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.store.faults(func(_ context.Context, statement string) error {
					if statement == "Register" {
						return fmt.Errorf("register: %w", refusal)
					}
					return nil
				}, nil)
				f.run().wantEnd(refusal)
			})
		})
	}
}

// A lease that was computed before lanes were released must not bring them back.
func TestLateAnswerOfLeaseDoesNotBringLanesBack(t *testing.T) {
	for phase := range 8 {
		t.Run(strconv.Itoa(phase), func(t *testing.T) {
			simulate(t, func(f *fixture) { lateAnswer(f, time.Duration(phase)*600*time.Millisecond) })
		})
	}
}

func lateAnswer(f *fixture, phase time.Duration) {
	f.broker.whole = func(ctx context.Context, events []outbox.Event) []error {
		pause(ctx, 5*time.Second) // so that lanes are drained while an answer is under way
		for _, e := range events {
			f.broker.take(e)
		}
		return make([]error, len(events))
	}
	first := f.run()
	f.pass(time.Second)
	f.store.faults(nil, func(ctx context.Context, statement string) error {
		if statement == "Lease" {
			pause(ctx, 3*time.Second)
		}
		return nil
	})
	var second *instance
	for n := range 60 {
		f.append(fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n), fmt.Sprintf("c%d", n), fmt.Sprintf("d%d", n))
		if n == 20 {
			f.pass(phase)
			second = f.run()
		}
		f.pass(500 * time.Millisecond)
	}
	f.pass(20 * time.Second)
	f.wantOwned(2, 2)
	if got := f.broker.ids(); len(got) != 240 {
		f.Errorf("%d were sent, want 240", len(got))
	}
	first.stop()
	second.stop()
}

// An instance that loses lanes and takes them again waits for what it sent before, even
// if they are in other stripes now.
func TestLaneHasOneCallAtATimeEvenWhenTakenAgain(t *testing.T) {
	simulate(t, func(f *fixture) {
		release := make(chan struct{})
		f.broker.on = func(context.Context, outbox.Event) error {
			<-release
			return nil
		}
		lanes := func(c *outbox.RelayConfig) { c.Lanes = 5 }
		key := keyOf(0, 5)
		f.append(key+"1", key+"2")
		i := f.run(lanes)
		f.pass(time.Second)
		f.store.mu.Lock()
		for n := range 2 {
			l := &f.store.relays["events"].lanes[n]
			l.owner, l.epoch = "", l.epoch+1
		}
		f.store.mu.Unlock()
		f.pass(10 * time.Second)
		f.wantNotices(outbox.NoticeTaken, 2)
		if len(f.broker.calls) != 1 {
			f.Errorf("calls %q", f.broker.calls)
		}
		close(release)
		f.pass(time.Second)
		f.wantSent(key+"1", key+"2", key+"1", key+"2") // The first call's outcome was nobody's.
		i.stop()
		f.wantSaved(lanes)
	})
}

// lastTaken is the lane that was taken last.
func (f *fixture) lastTaken() int {
	taken := f.noticesOf(outbox.NoticeTaken)
	return taken[len(taken)-1].Lane
}

// keyOf returns a key of a lane.
func keyOf(lane, lanes int) string {
	for key := 'a'; ; key++ {
		if laneOf(&fakeEvent{Event: outbox.Event{Message: outbox.Message{Key: []byte(string(key))}}}, lanes) == lane {
			return string(key)
		}
	}
}

// Lanes that are taken over may be ahead of ours, or behind them: nobody knows before
// they were read.
func TestLanesTakenOverAreOfUnknownAge(t *testing.T) {
	for name, theirs := range map[string]bool{"ahead": true, "behind": false} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				two := func(c *outbox.RelayConfig) { c.Lanes = 2 }
				ids := []string{keyOf(0, 2) + "98", keyOf(1, 2) + "98"}
				f.append(ids...)
				ours := f.run(two)
				f.pass(time.Second)
				other := f.run(two)
				f.pass(10 * time.Second)
				f.wantOwned(1, 1)
				busy := f.lastTaken()
				if !theirs {
					busy = 1 - busy
				}
				for n := range 20 {
					id := fmt.Sprintf("%s%d", keyOf(busy, 2), n)
					f.append(id)
					ids = append(ids, id)
					f.pass(time.Second)
				}
				f.wantSent(ids...)
				other.stop()
				f.pass(10 * time.Second)
				for lane := range 2 {
					id := keyOf(lane, 2) + "99"
					f.append(id)
					ids = append(ids, id)
				}
				f.pass(5 * time.Second)
				f.wantSent(ids...)
				ours.stop()
				f.wantSaved(two)
			})
		})
	}
}
