package crash

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// killsPerHandling times three ways of handling makes more than a hundred.
const killsPerHandling = 36

// TestKilledAtAnyMoment is K4 and more: SIGKILL before and after any write to PostgreSQL, around the commit, between the
// commit and the offset, and at moments that nobody chose.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	for _, h := range handlings {
		t.Run(string(h), func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, map[handling]int{oneByOne: 200, batched: 1500, bulk: 3000}[h])
			tr.orders.Handling = h
			tr.begin()

			// A lone member each time; then two that join and die together; then one beside a survivor, which
			// takes over and gives back all the time.
			tr.killer(tr.random, killsPerHandling/3)
			var killers sync.WaitGroup
			for range 2 {
				random := newRandom(tr.random.Uint64())
				killers.Go(func() { tr.killer(random, killsPerHandling/6) })
			}
			killers.Wait()
			survivor := tr.member(nil)
			tr.killer(tr.random, killsPerHandling/3)

			if survivor.Count(kafka.EventJoined) < 2 {
				t.Error("the survivor saw no rebalance, so half of this proved nothing")
			}
			tr.finish()

			kills := 0
			for _, moment := range moments {
				if tr.faults[moment] == 0 {
					t.Errorf("nobody was killed %s", moment)
				}
				kills += tr.faults[moment]
			}
			if kills < killsPerHandling {
				t.Errorf("%d of %d members were killed by SIGKILL", kills, killsPerHandling)
			}
		})
	}
}

// The moments at which members are killed.
const (
	byWatch     = "at a random time"
	aroundWrite = "around a write"
	atCommit    = "around a commit"
	afterCommit = "between commit and offset"
)

var moments = []string{byWatch, aroundWrite, atCommit, afterCommit}

// killer starts one member after the other, each doomed in its own way, and counts those that were hit.
func (tr *trial) killer(random *rand.Rand, kills int) {
	for n := range kills {
		moment := moments[n%len(moments)]
		d := death{Before: random.IntN(2) == 0}
		switch moment {
		case aroundWrite:
			d.Write = 1 + random.IntN(60)
		case atCommit:
			d.Commit = 1 + random.IntN(6)
		case afterCommit:
			d.Processed = 1 + random.IntN(100)
		}
		p := tr.member(func(o *orders) {
			o.Death = d
			o.KeyParallelism = 1 + 3*random.IntN(2)
		})
		if moment == byWatch {
			// The delay is the fault: a moment anywhere in the flow, counted from a settled message.
			p.Await(inbox.EventProcessed, 1+random.IntN(20))
			pause(tr.t.Context(), time.Duration(random.Int64N(int64(300*time.Millisecond))))
			p.Kill()
		} else if !p.AwaitEnd(10 * time.Second) {
			moment = byWatch // it never came so far, alone or with a rebalance in between
		}
		if p.Killed() {
			tr.fault(moment)
		} else {
			tr.t.Errorf("member %v ended by itself: %v", p, p.State())
		}
	}
}
