package crash

import (
	"testing"
	"time"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/proxy"
	"github.com/onceward/onceward/integration/stack"
)

// TestDatabaseConnectionsCut cuts before and after the commit, when its outcome is unknown, and at random moments; it
// lets a connection fall silent, and the server end sessions.
func TestDatabaseConnectionsCut(t *testing.T) {
	t.Parallel()
	database := stack.Postgres(t)
	between, through := proxy.New(t, database, isCommit)
	tr := newTrial(t, database, stack.Kafka(t).Addr, 1500)
	tr.orders.Database = through
	tr.begin()
	var members []*process
	for _, h := range handlings {
		members = append(members, tr.member(func(o *orders) { o.Handling, o.KeyParallelism = h, 2 }))
	}
	const rounds = 20
	for round := range rounds {
		if !awaitEffects(t, members, 1+tr.random.IntN(50)) {
			t.Fatalf("nothing is handled before cut %d", round+1)
		}
		switch round % 5 {
		case 0:
			between.Lie(proxy.CutBefore, 0)
			tr.fault("before a commit")
		case 1:
			between.Lie(proxy.CutAfter, 0)
			tr.fault("after a commit")
		case 2:
			between.Lie(proxy.FallSilent, 0)
			tr.fault("silent after a commit")
		case 3:
			tr.pause(20 * time.Millisecond)
			between.Cut()
			tr.fault("all")
		case 4:
			const terminate = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5`
			if _, err := tr.pool.Exec(t.Context(), terminate); err != nil {
				t.Logf("the checker's other connection was hit: %v", err)
			}
			tr.fault("terminated by the server")
		}
	}
	if !awaitEffects(t, members, 50) {
		t.Error("nothing is handled after the last cut")
	}
	if between.Strikes() < 3 {
		t.Errorf("%d commits were cut, which proves little", between.Strikes())
	}
	tr.finish()
}

// TestBrokerConnectionsCut breaks the sockets of fetches, heartbeats and commits.
func TestBrokerConnectionsCut(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 1000)
	tr.begin()
	members := []*process{
		tr.member(func(o *orders) { o.Handling = batched }),
		tr.member(func(o *orders) { o.Handling = oneByOne }),
	}
	const rounds = 12
	for round := range rounds {
		if !awaitEffects(t, members, 1+tr.random.IntN(100)) {
			t.Fatalf("nothing is handled before cut %d", round+1)
		}
		tr.pause(200 * time.Millisecond)
		members[tr.random.IntN(len(members))].Say(wordCut)
		tr.fault("cut")
	}
	if !awaitEffects(t, members, 100) {
		t.Error("nothing is handled after the last cut")
	}
	noticed := 0
	for _, kind := range []inbox.EventKind{kafka.EventRetry, kafka.EventCommitDropped, kafka.EventCommitFailed, kafka.EventDrained} {
		noticed += total(members, kind)
	}
	if noticed == 0 {
		t.Error("no member noticed a cut, so nothing was proved")
	}
	tr.finish()
}
