package crash

import (
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
)

// TestTwoConsumersAreIndependent: each has every effect once, in one database, while members of both die.
func TestTwoConsumersAreIndependent(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 1000)
	tr.orders.Handling = batched
	other := func(o *orders) {
		o.Consumer, o.Group, o.Handling = "shipping", o.Topic+".shipping", oneByOne
	}
	tr.begin()
	for range 3 {
		first, second := tr.member(nil), tr.member(other)
		first.Await(inbox.EventProcessed, 50)
		second.Await(inbox.EventProcessed, 50)
		first.Kill()
		second.Kill()
		tr.fault("kill of both")
	}
	tr.member(nil)
	tr.member(other)
	tr.ended.Store(true)
	tr.load.Wait()
	tr.drain(tr.orders.Topic + ".shipping")
	tr.finish()
	tr.check("shipping", tr.orders.Topic+".shipping")
}
