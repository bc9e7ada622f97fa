package outbox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// TestNothingIsLostAndKeysKeepTheirOrderWhateverOperatorsDoAmongFailures: instances die, freeze, stop and lose their lanes, the publisher fails,
// and meanwhile an operator does everything of docs/outbox.md. What it gives up, by Skip or Discard, is left out of the verdict.
func TestNothingIsLostAndKeysKeepTheirOrderWhateverOperatorsDoAmongFailures(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) chaosDatabase{"PostgreSQL": newChaosPostgres, "SQLite": newChaosSQLite} {
		for _, policy := range []outbox.Policy{outbox.BlockLane, outbox.ParkKey} {
			t.Run(fmt.Sprint(name, " ", policy), func(t *testing.T) {
				t.Parallel()
				newChaos(t, open(t), policy).run()
			})
		}
	}
}

// chaosDatabase is what a schedule needs beside the store.
type chaosDatabase interface {
	// store returns one of its own for each instance and operator, as other processes have.
	store() outbox.RelayStore
	// load has writers work until end is called.
	load(random *rand.Rand) (end func())
	ledger() []entry
	// recent returns the last event of the log but so many. id is empty if there is none.
	recent(but int) (number int64, id string)
	// expireLeases does what time does.
	expireLeases()
	// change is what docs/outbox.md has operators change by SQL.
	change(topics []string, retention time.Duration)
}

// chaos is one schedule. Its steps follow each other; the instances and the writers run meanwhile.
type chaos struct {
	t         testing.TB
	random    *rand.Rand
	database  chaosDatabase
	store     outbox.RelayStore
	operator  *outbox.Operator
	publisher *fickle

	config  outbox.RelayConfig
	members []*chaosMember
	// zombies were frozen while an operator changed the relay. When they wake, they are instances of a relay that is not that one any more.
	zombies []*chaosMember
	// lingering: the lease of an instance that did not stop cleanly may not be over.
	lingering bool

	givenUp                     map[string]bool // by id
	redriven, discarded, pruned int
	done                        []string // the steps, in their order
}

// chaosMember is an instance that can be struck.
type chaosMember struct {
	*instance
	*life

	leases *lateLeases
	thaw   func() // nil: it is not frozen
}

// earlyTopics are those of the relay before the operator changes them to all, and has what was passed of the others replayed.
var earlyTopics = []string{"orders*"}

func newChaos(t testing.TB, database chaosDatabase, policy outbox.Policy) *chaos {
	t.Helper()
	random := newRandom(seed(t))
	c := &chaos{
		t: t, random: random, database: database, store: database.store(), operator: outbox.NewOperator(database.store()),
		publisher: &fickle{recorder: newRecorder(random.Uint64()), refuses: policy == outbox.ParkKey},
		config:    relayConfig(t, random), givenUp: map[string]bool{},
	}
	c.config.Policy, c.config.Topics, c.config.Retention = policy, earlyTopics, time.Hour
	c.config.Lease, c.config.BackoffMin, c.config.BackoffMax = time.Second, time.Millisecond, 20*time.Millisecond
	c.config.Logger = quiet // failures are what is made here
	c.config.MaxAttempts = 3
	if policy == outbox.BlockLane {
		c.config.MaxAttempts = 1_000_000 // a dead letter may be overtaken there
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("steps: %q", c.done)
		}
		// Nothing stays frozen after a failure.
		for _, m := range slices.Concat(c.members, c.zombies) {
			m.wake()
			m.cancel()
		}
	})
	return c
}

func (c *chaos) run() {
	end := c.database.load(c.random)
	defer end()
	c.members = []*chaosMember{c.start(), c.start()}
	eventually(c.t, "the relay is registered", func() bool {
		_, err := statusOf(c.t.Context(), c.store, c.config.Name)
		return err == nil
	})
	c.play()
	c.step(changeSettings)
	c.play()
	end()

	c.publisher.calm.Store(true)
	for _, m := range slices.Concat(c.members, c.zombies) {
		m.wake()
	}
	eventually(c.t, "everything is passed and nothing is set aside", func() bool {
		c.redrive(0)
		return isPublished(c.t, c.store, c.config.Name)
	})
	eventually(c.t, "the log is pruned", func() bool {
		c.prune()
		return c.pruned > 0
	})
	for _, m := range c.members {
		m.stop(c.t)
	}
	c.buryZombies()
	c.judge()
}

func (c *chaos) judge() {
	c.t.Helper()
	ledger := slices.DeleteFunc(c.database.ledger(), func(e entry) bool { return c.givenUp[e.id] })
	published := slices.DeleteFunc(c.publisher.journal.published(), func(id string) bool { return c.givenUp[id] })
	v := judge(ledger, published)
	wantInOrder(c.t, "published", v)
	if len(v.copied) == 0 || len(c.givenUp) == 0 || c.publisher.refuses && c.redriven == 0 {
		c.t.Error("no event was published again, given up or redriven, so a part proved nothing")
	}
	c.t.Logf("at the end %d lanes, batches of %d; %d given up, %d of them discarded, %d redriven, %d pruned, %d copies of %d",
		c.config.Lanes, c.config.Batch, len(c.givenUp), c.discarded, c.redriven, c.pruned, len(v.copied), len(ledger))
}

// chaosStep is something that happens.
type chaosStep struct {
	name string
	do   func(*chaos)
}

// repeatedSteps all happen in each half of a schedule, in a random order.
var repeatedSteps = []chaosStep{
	{"an instance dies", (*chaos).dies},
	{"an instance stops", (*chaos).stops},
	{"an instance freezes", (*chaos).freezes},
	{"an instance wakes", (*chaos).wakes},
	{"leases end", (*chaos).leasesEnd},
	{"redrive all", func(c *chaos) { c.redrive(0) }},
	{"redrive some", func(c *chaos) { c.redrive(1 + c.random.IntN(3)) }},
	{"discard", (*chaos).discard},
	{"skip", (*chaos).skip},
	{"replay", (*chaos).replay},
	{"prune", (*chaos).prune},
	{"change lanes", (*chaos).changeLanes},
}

// changeSettings happens between the halves.
var changeSettings = chaosStep{"change settings", (*chaos).changeSettings}

// play has each step happen so many times.
func (c *chaos) play() {
	const times = 2
	for _, n := range c.random.Perm(times * len(repeatedSteps)) {
		c.step(repeatedSteps[n%len(repeatedSteps)])
	}
}

func (c *chaos) step(s chaosStep) {
	pause(c.t.Context(), time.Duration(c.random.Int64N(int64(100*time.Millisecond))))
	c.done = append(c.done, s.name)
	s.do(c)
}

// must reports what an operator is told that is none of the expected errors.
func (c *chaos) must(err error, expected ...error) {
	c.t.Helper()
	if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		c.t.Errorf("%s: %v", c.done[len(c.done)-1], err)
	}
}

// start runs another instance, with a store of its own: what a store remembers is remembered by one process.
func (c *chaos) start() *chaosMember {
	leases := &lateLeases{RelayStore: c.database.store(), random: newRandom(c.random.Uint64())}
	l := newLife(leases, c.publisher)
	return &chaosMember{instance: startRelay(l, l, c.config), life: l, leases: leases}
}

func (m *chaosMember) wake() {
	if m.thaw != nil {
		m.thaw()
		m.thaw = nil
	}
}

// replaced has a step happen to a random instance that ends by it, and starts another one.
func (c *chaos) replaced(end func(*chaosMember)) {
	n := c.random.IntN(len(c.members))
	end(c.members[n])
	c.members[n] = c.start()
}

func (c *chaos) dies() {
	c.replaced(func(m *chaosMember) {
		m.die()
		m.wake()
		m.cancel()
		_ = m.end(c.t)           // it could not leave
		m.leases.underWay.Wait() // or one would come after leasesEnd
		c.lingering = true
	})
}

func (c *chaos) stops() {
	c.replaced(c.stop)
}

func (c *chaos) stop(m *chaosMember) {
	m.wake()
	m.stop(c.t)
}

func (c *chaos) freezes() {
	if m := c.members[c.random.IntN(len(c.members))]; m.thaw == nil {
		m.thaw = m.freeze()
	}
}

func (c *chaos) wakes() {
	for _, m := range slices.Concat(c.members, c.zombies) {
		m.wake()
	}
}

func (c *chaos) leasesEnd() {
	c.database.expireLeases()
	c.lingering = false
}

// redrive redrives so many dead letters, or all if it is 0.
func (c *chaos) redrive(limit int) {
	n, err := c.operator.Redrive(c.t.Context(), c.config.Name, outbox.Filter{Limit: limit}, outbox.Apply)
	c.must(err)
	c.redriven += n
}

func (c *chaos) discard() {
	dead, err := c.operator.SetAside(c.t.Context(), c.config.Name, outbox.Filter{State: outbox.Dead, Limit: 3})
	c.must(err)
	numbers := []int64{}
	for _, a := range dead {
		numbers = append(numbers, a.Aside.Number)
		c.givenUp[a.Event.ID] = true
	}
	n, err := c.operator.Discard(c.t.Context(), c.config.Name, outbox.Filter{Numbers: numbers}, outbox.Apply)
	c.must(err)
	c.discarded += n
}

// skip skips an event that is set aside, or one that may be on its way.
func (c *chaos) skip() {
	number, id := c.database.recent(c.random.IntN(20))
	aside, err := c.operator.SetAside(c.t.Context(), c.config.Name, outbox.Filter{Limit: 20})
	c.must(err)
	if len(aside) > 0 && c.random.IntN(2) == 0 {
		chosen := aside[c.random.IntN(len(aside))]
		number, id = chosen.Aside.Number, chosen.Event.ID
	}
	if id == "" {
		return
	}
	err = c.operator.Skip(c.t.Context(), c.config.Name, number)
	c.must(err, outbox.ErrPassed, outbox.ErrNoEvent) // ErrNoEvent: pruned since
	if err == nil {
		c.givenUp[id] = true
	}
}

func (c *chaos) replay() {
	number, _ := c.database.recent(c.random.IntN(60))
	c.must(c.operator.ReplayFrom(c.t.Context(), c.config.Name, number))
}

func (c *chaos) prune() {
	pruned, err := c.store.PruneLog(c.t.Context(), 0, 1000, time.Hour)
	c.must(err)
	c.pruned += pruned.Events
}

func (c *chaos) changeLanes() {
	c.whileStopped(func() {
		lanes := 1 + c.random.IntN(16)
		err := c.operator.ChangeLanes(c.t.Context(), c.config.Name, lanes)
		if len(c.zombies) > 0 && errors.Is(err, outbox.ErrRunning) { // what it asked for last came late
			c.leasesEnd()
			err = c.operator.ChangeLanes(c.t.Context(), c.config.Name, lanes)
		}
		c.must(err)
		if err == nil {
			c.config.Lanes = lanes
		}
	})
}

// changeSettings adds topics, whose events the relay has passed so far, and shortens the retention. From then on events are pruned.
func (c *chaos) changeSettings() {
	c.whileStopped(func() {
		c.config.Topics = append([]string{"payments"}, earlyTopics...)
		c.database.change(c.config.Topics, c.config.Retention)
		c.must(c.operator.ReplayFrom(c.t.Context(), c.config.Name, 1))
		c.config.Retention = time.Second
		c.database.change(c.config.Topics, c.config.Retention)
	})
}

// whileStopped stops all instances for a change, but now and then one that is frozen so that nobody sees it, and whose lease is over. If all
// of them stopped cleanly, no lease is left.
func (c *chaos) whileStopped(change func()) {
	c.buryZombies()
	if c.random.IntN(3) > 0 {
		c.lingering = true
		n := c.random.IntN(len(c.members))
		zombie := c.members[n]
		if zombie.thaw == nil {
			zombie.thaw = zombie.freeze()
		}
		c.zombies = append(c.zombies, zombie)
		c.members = slices.Delete(c.members, n, n+1)
	}
	for _, m := range c.members {
		c.stop(m)
	}
	if c.lingering {
		c.leasesEnd()
	}
	change()
	c.members = []*chaosMember{c.start(), c.start()}
}

// buryZombies ends those that have not noticed yet what they are.
func (c *chaos) buryZombies() {
	for _, m := range c.zombies {
		m.wake()
		m.cancel()
		c.must(m.end(c.t), outbox.ErrSettings)
	}
	c.zombies = nil
}
