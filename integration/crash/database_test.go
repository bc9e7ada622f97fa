package crash

import (
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/child"
	"github.com/onceward/onceward/integration/stack"
)

// TestDatabaseRestarts is X5: whatever ends the database, no attempt is spent and the process lives on.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	server := stack.NewPostgres(t)
	tr := newTrial(t, server.Database(), stack.Kafka(t).Addr, 2000)
	tr.begin()
	var members []*process
	for _, h := range handlings {
		members = append(members, tr.member(func(o *orders) { o.Handling, o.KeyParallelism = h, 2 }))
	}
	for i, outage := range []struct {
		kind string
		end  func()
		away time.Duration
	}{
		{"kill", server.Kill, 0},
		{"stop", server.Stop, 0},
		{"kill and stay away", server.Kill, 6 * time.Second},
		{"kill", server.Kill, 0},
		{"stop", server.Stop, 500 * time.Millisecond},
	} {
		// The group may give everything to some of them; all are watched together.
		if !awaitEffects(t, members, 200) {
			t.Fatalf("nothing is handled before outage %d", i+1)
		}
		outage.end()
		pause(t.Context(), outage.away) // the length of the outage is the fault
		server.Start()
		tr.fault(outage.kind)
	}
	if !awaitEffects(t, members, 200) {
		t.Error("nothing is handled after the last outage")
	}
	for _, p := range members {
		if !p.Alive() {
			t.Errorf("member %v did not survive: %v", p, p.State())
		}
	}
	if total(members, inbox.EventOutage) == 0 {
		t.Error("no member saw an outage, so nothing was proved")
	}
	tr.finish()
}

// TestDatabaseAwayAtCommit takes the database away when the effect is written and the commit is not sent.
func TestDatabaseAwayAtCommit(t *testing.T) {
	t.Parallel()
	for _, h := range handlings {
		t.Run(string(h), func(t *testing.T) {
			t.Parallel()
			server := stack.NewPostgres(t)
			tr := newTrial(t, server.Database(), stack.Kafka(t).Addr, 300)
			tr.begin()
			p := tr.member(func(o *orders) { o.Handling, o.Hold = h, messageID("p2-k3", 7) })
			if !p.Await(lineHeld, 1) {
				t.Fatal("nothing was held")
			}
			server.Kill()
			p.Say(wordGo)
			if !p.Await(inbox.EventOutage, 1) {
				t.Error("the outage was not reported")
			}
			server.Start()
			tr.fault("kill before commit")
			before := p.Count(inbox.EventProcessed)
			p.Await(inbox.EventProcessed, before+100)
			tr.finish()
		})
	}
}

// TestTableLockedBySomebodyElse: a table locked for longer than the claim wait holds up everything and spends nothing.
func TestTableLockedBySomebodyElse(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, stack.Postgres(t), stack.Kafka(t).Addr, 1000)
	tr.begin()
	var members []*process
	for _, h := range handlings {
		members = append(members, tr.member(func(o *orders) { o.Handling = h }))
	}
	for _, table := range []string{"onceward.record", "effect"} {
		if !awaitEffects(t, members, 100) {
			t.Fatalf("nothing is handled before %s is locked", table)
		}
		tx, err := tr.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		pause(t.Context(), time.Second) // for what was committed before to be reported
		before := total(members, inbox.EventProcessed)
		pause(t.Context(), claimWait) // the length of the lock is the fault
		if n := total(members, inbox.EventProcessed) - before; n != 0 {
			t.Errorf("%d messages were handled while %s was locked, so nothing was proved", n, table)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		tr.fault("lock of " + table)
	}
	if !awaitEffects(t, members, 100) {
		t.Error("nothing is handled after the last lock")
	}
	tr.finish()
}

// awaitEffects waits until the members together have reported n more effects.
func awaitEffects(t testing.TB, members []*process, n int) bool {
	t.Helper()
	goal := total(members, inbox.EventProcessed) + n
	for deadline := time.Now().Add(child.Patience); time.Now().Before(deadline); {
		if total(members, inbox.EventProcessed) >= goal {
			return true
		}
		pause(t.Context(), 10*time.Millisecond)
	}
	return false
}

// total is what the members together have reported of a kind.
func total(members []*process, kind inbox.EventKind) (sum int) {
	for _, p := range members {
		sum += p.Count(kind)
	}
	return sum
}
