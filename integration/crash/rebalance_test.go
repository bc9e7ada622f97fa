package crash

import (
	"testing"
	"time"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// TestRebalanceStorm is K14: members of all kinds, so two versions of a program at once, join, leave, die and freeze
// beyond their session at random.
func TestRebalanceStorm(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 1000)
	join := func() *process {
		return tr.member(func(o *orders) {
			o.Handling = handlings[tr.random.IntN(len(handlings))]
			o.KeyParallelism = 1 + tr.random.IntN(4)
		})
	}
	tr.begin()
	join().Await(inbox.EventProcessed, 1)
	const rounds = 18
	for range rounds {
		members := tr.living()
		victim := members[tr.random.IntN(len(members))]
		what := []string{"join", "leave", "kill", "freeze"}[tr.random.IntN(4)]
		if len(members) < 2 {
			what = "join"
		}
		tr.fault(what)
		switch what {
		case "join":
			// Others may keep it from its first message, so only the group's answer is waited for.
			join().Await(kafka.EventJoined, 1)
		case "leave":
			victim.Stop()
		case "kill":
			victim.Kill()
		case "freeze":
			thaw := victim.Freeze()
			pause(t.Context(), sessionTimeout)
			tr.pause(2 * time.Second)
			thaw()
		}
	}
	if len(tr.living()) == 0 {
		join()
	}
	tr.finish()
}

// TestFrozenBeforeItsCommit is a zombie: frozen with its effect written, it loses its partitions, wakes and goes for the
// commit while it is told to stop. Either it wins and its heir finds duplicates, or nothing happened and the heir does it.
func TestFrozenBeforeItsCommit(t *testing.T) {
	t.Parallel()
	for _, h := range handlings {
		t.Run(string(h), func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 400)
			tr.orders.Handling = h
			tr.begin()
			zombie := tr.member(func(o *orders) { o.Hold = messageID("p1-k1", 20) })
			if !zombie.Await(lineHeld, 1) {
				t.Fatal("nothing was held")
			}
			thaw := zombie.Freeze()
			defer thaw()
			heir := tr.member(nil)
			// The claim is the zombie's as long as its transaction is open. Whoever waits for it in vain tries again.
			if !heir.Await(inbox.EventFailed, 1) {
				t.Error("the heir did not meet the zombie's claim")
			}
			zombie.Say(wordGo)
			thaw()
			if !zombie.Await(kafka.EventJoined, 2) {
				t.Error("the zombie did not join again")
			}
			tr.fault("freeze")
			tr.finish()
		})
	}
}

// TestHandlerSlowerThanTheGroupWaits is K14: a handler that is deaf to its context and slower than session, drain and
// rebalance together is evicted and left behind; when it wakes, its transaction is gone.
func TestHandlerSlowerThanTheGroupWaits(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 300)
	tr.begin()
	slow := tr.member(func(o *orders) {
		o.Handling = oneByOne
		o.SlowEvery, o.Slow = 5, sessionTimeout+drainTimeout+rebalanceTimeout
	})
	if !slow.Await(inbox.EventProcessed, 1) {
		t.Fatal("the slow member handled nothing")
	}
	for range 2 {
		// Each newcomer asks the slow one to let go, in the midst of its sleep.
		p := tr.member(func(o *orders) { o.Handling = batched })
		p.Await(inbox.EventProcessed, 1)
		p.Kill()
		tr.fault("kill")
	}
	tr.member(func(o *orders) { o.Handling = batched }).Await(inbox.EventProcessed, 1)
	if !slow.Await(lineSlept, 1) {
		t.Error("no handler slept")
	}
	if slow.Count(inbox.EventAbandoned) == 0 {
		t.Error("no handler was left behind, so nothing was proved")
	}
	slow.Kill() // it would sleep the trial away
	tr.finish()
}
