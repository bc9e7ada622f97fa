package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

const (
	lanes      = 16
	partitions = 6
	// rounds of SIGKILL or SIGSTOP/SIGCONT.
	rounds = 104
	// shortLease makes the death of an instance quick to be noticed.
	shortLease = time.Second
)

// TestFourProcessesKilledAndFrozenAtRandom has four processes share sixteen lanes under load, on real servers, and strikes them again and again.
func TestFourProcessesKilledAndFrozenAtRandom(t *testing.T) {
	t.Parallel()
	random := newRandom(seed(t))
	url, broker := stack.Postgres(t), stack.Kafka(t).Addr
	admin := newDatabase(t, url)
	topic := stack.Topic(t, broker, partitions)
	w := newWriters(t, url)
	w.topic = topic
	o := orders{Database: url, Broker: broker, Relay: "events", Lanes: lanes, Batch: 200, Lease: shortLease}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loading := newRandom(random.Uint64())
	var load sync.WaitGroup
	load.Go(func() {
		for ctx.Err() == nil {
			w.run(context.WithoutCancel(ctx), loading, 2, 4)
			pause(ctx, 10*time.Millisecond)
		}
	})
	tormentors := []*tormentor{newTormentor(t, o, random), newTormentor(t, o, random)}
	for _, tormentor := range tormentors {
		tormentor.awaitWork()
	}
	var torment sync.WaitGroup
	for _, tormentor := range tormentors {
		torment.Go(func() { tormentor.torment(rounds / len(tormentors)) })
	}
	torment.Wait()
	cancel()
	load.Wait()

	store := postgres.New(admin)
	awaitPublished(t, store, o.Relay)
	var killed, froze int
	for _, tormentor := range tormentors {
		killed, froze = killed+tormentor.killed, froze+tormentor.froze
		for _, p := range tormentor.members {
			p.Stop()
		}
	}
	ledger := readLedger(t, admin)
	v := judge(ledger, idsOf(readTopic(t, broker, topic, partitions)))
	wantInOrder(t, "on the topic", v)
	if killed+froze < rounds || killed == 0 || froze == 0 {
		t.Errorf("%d killed and %d frozen, want %d rounds of both kinds", killed, froze, rounds)
	}
	t.Logf("%d killed, %d frozen; %d copies of %d", killed, froze, len(v.copied), len(ledger))
}

// takeoverTime is within what time of its owner's death a lane must have another one: the lease, and the slowness of a
// machine that the race detector shares with a broker.
const takeoverTime = shortLease + 500*time.Millisecond

// TestLanesOfDeadAndFrozenAreOwnedAgainWithinTheLease strikes one process at a time, when each has its share.
func TestLanesOfDeadAndFrozenAreOwnedAgainWithinTheLease(t *testing.T) {
	t.Parallel()
	url, broker := stack.Postgres(t), stack.Kafka(t).Addr
	store := postgres.New(newDatabase(t, url))
	o := orders{Database: url, Broker: broker, Relay: "events", Lanes: lanes, Batch: 200, Lease: shortLease}
	members := make([]*process, 4)
	for n := range members {
		members[n] = start(t, o)
	}
	// owners counts the lanes of each process that has a lease. An instance is named after its host, its process and something random.
	owners := func() map[*process]int {
		status, err := statusOf(t.Context(), store, o.Relay)
		counts := map[*process]int{}
		if err != nil {
			return counts // before the first of them has registered the relay
		}
		for _, lane := range status.Status {
			for _, i := range status.Instances {
				for _, p := range members {
					if i.Name == lane.Owner && i.Lease > 0 && strings.Contains(i.Name, fmt.Sprintf("-%d-", p.ID())) {
						counts[p]++
					}
				}
			}
		}
		return counts
	}
	for round := range 6 {
		eventually(t, "an even share for each process", func() bool {
			counts := owners()
			return !slices.ContainsFunc(members, func(p *process) bool { return counts[p] != lanes/len(members) })
		})
		victim := members[round%len(members)]
		how, thaw := "killed", func() {}
		if round%2 == 0 {
			victim.Kill()
		} else {
			how, thaw = "frozen", victim.Freeze()
		}
		struck := time.Now()
		eventually(t, "lanes of the "+how+" process are others'", func() bool {
			counts, sum := owners(), 0
			for _, p := range members {
				sum += counts[p]
			}
			return sum-counts[victim] == lanes
		})
		took := time.Since(struck)
		if took > takeoverTime {
			t.Errorf("the lanes of a process that was %s had another owner after %v, want %v at most", how, took, takeoverTime)
		}
		t.Logf("%s: owned again after %v, with a lease of %v", how, took.Round(time.Millisecond), shortLease)
		thaw()
		if how == "killed" {
			members[round%len(members)] = start(t, o)
		}
	}
	for _, p := range members {
		p.Stop()
	}
}

// tormentor owns two members and strikes one of them at a time, so that of four at least two work.
type tormentor struct {
	t       testing.TB
	orders  orders
	random  *rand.Rand
	members []*process

	killed, froze int
}

func newTormentor(t testing.TB, o orders, random *rand.Rand) *tormentor {
	return &tormentor{t: t, orders: o, random: newRandom(random.Uint64()), members: []*process{start(t, o), start(t, o)}}
}

// awaitWork waits until both members have published something.
func (m *tormentor) awaitWork() {
	m.t.Helper()
	for _, p := range m.members {
		if !p.Await(outbox.NoticePublished, 1) {
			m.t.Fatal("a member published nothing")
		}
	}
}

func (m *tormentor) torment(rounds int) {
	for range rounds {
		n := m.random.IntN(len(m.members))
		victim := m.members[n]
		// It is hit at a moment that nobody chose, but not before it has done anything.
		if !victim.Await(outbox.NoticePublished, 1) {
			m.t.Errorf("a member ended by itself: %v", victim.State())
			return
		}
		pause(context.Background(), time.Duration(m.random.Int64N(int64(200*time.Millisecond))))
		if m.random.IntN(3) == 0 {
			victim.Kill()
			m.members[n] = start(m.t, m.orders)
			m.killed++
			continue
		}
		thaw := victim.Freeze()
		most := shortLease / 4
		if m.random.IntN(3) == 0 {
			most = 2 * shortLease
		}
		pause(context.Background(), time.Duration(m.random.Int64N(int64(most))))
		thaw()
		m.froze++
	}
}

// awaitPublished waits until a relay has published everything that is committed.
func awaitPublished(t testing.TB, store outbox.RelayStore, relay string) {
	t.Helper()
	eventually(t, "everything is published", func() bool {
		return isPublished(t, store, relay)
	})
}

// isPublished returns whether a relay has passed everything that is committed, and has set nothing aside.
func isPublished(t testing.TB, store outbox.RelayStore, relay string) bool {
	t.Helper()
	status, err := statusOf(t.Context(), store, relay)
	return err == nil && !slices.ContainsFunc(status.Status, func(lane outbox.LaneStatus) bool { return lane.Events > 0 || len(lane.Aside) > 0 })
}

func statusOf(ctx context.Context, store outbox.RelayStore, relay string) (outbox.RelayStatus, error) {
	all, err := store.Relays(ctx, 1)
	if err != nil {
		return outbox.RelayStatus{}, err
	}
	for _, status := range all {
		if status.Relay == relay {
			return status, nil
		}
	}
	return outbox.RelayStatus{}, fmt.Errorf("%w: %s", outbox.ErrNoRelay, relay)
}
