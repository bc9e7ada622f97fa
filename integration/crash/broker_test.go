package crash

import (
	"testing"
	"time"

	"github.com/onceward/onceward/integration/stack"
)

// TestBrokerRestarts ends the broker in both ways while messages are sent and read.
func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	broker := stack.NewKafka(t)
	tr := newTrial(t, stack.Postgres(t), broker.Addr(), 1000)
	tr.begin()
	members := []*process{
		tr.member(func(o *orders) { o.Handling = batched }),
		tr.member(func(o *orders) { o.Handling = oneByOne }),
	}
	for _, restart := range []struct {
		kind string
		end  func()
	}{{"kill", broker.Kill}, {"stop", broker.Stop}, {"kill", broker.Kill}} {
		if !awaitEffects(t, members, 100) {
			t.Fatalf("nothing is handled before the broker's end by %s", restart.kind)
		}
		restart.end()
		broker.Start()
		tr.fault(restart.kind)
		back := time.Now()
		if !awaitEffects(t, members, 1) {
			t.Fatalf("nothing is handled after the broker's end by %s", restart.kind)
		}
		t.Logf("the first effect came %v after the broker was back", time.Since(back).Round(time.Millisecond))
	}
	if !awaitEffects(t, members, 100) {
		t.Error("nothing is handled after the last restart")
	}
	for _, p := range members {
		if !p.Alive() {
			t.Errorf("member %v did not survive: %v", p, p.State())
		}
	}
	tr.finish()
}
