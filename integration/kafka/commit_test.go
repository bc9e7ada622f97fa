package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
)

// commitLog watches the commits that reach a cluster and the assignments that the group's leaders hand out.
type commitLog struct {
	mu       sync.Mutex
	commits  int
	last     map[string]int64           // by topic/partition
	assigned map[string]map[string]bool // by generation/member: topic/partition
	check    func(at string, offset int64)
	broken   []string
}

func watchCommits(cluster *kfake.Cluster) *commitLog {
	l := &commitLog{last: make(map[string]int64), assigned: make(map[string]map[string]bool)}
	cluster.ControlKey(int16(kmsg.SyncGroup), func(request kmsg.Request) (kmsg.Response, error, bool) {
		sync := request.(*kmsg.SyncGroupRequest)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, a := range sync.GroupAssignment {
			var assignment kmsg.ConsumerMemberAssignment
			if err := assignment.ReadFrom(a.MemberAssignment); err != nil {
				l.broken = append(l.broken, "assignment: "+err.Error())
			}
			partitions := make(map[string]bool)
			for _, topic := range assignment.Topics {
				for _, p := range topic.Partitions {
					partitions[place(topic.Topic, p)] = true
				}
			}
			l.assigned[strconv.Itoa(int(sync.Generation))+"/"+a.MemberID] = partitions
		}
		return nil, nil, false
	})
	cluster.ControlKey(int16(kmsg.OffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
		commit := request.(*kmsg.OffsetCommitRequest)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.commits++
		mine := l.assigned[strconv.Itoa(int(commit.Generation))+"/"+commit.MemberID]
		for _, topic := range commit.Topics {
			for _, p := range topic.Partitions {
				at := place(topic.Topic, p.Partition)
				if !mine[at] {
					l.broken = append(l.broken, fmt.Sprintf("%s was committed by %s of generation %d, which has %v of %v", at,
						commit.MemberID, commit.Generation, mine, l.assigned))
				}
				if p.Offset < l.last[at] {
					l.broken = append(l.broken, at+" went back")
				}
				l.last[at] = p.Offset
				if l.check != nil {
					l.check(at, p.Offset)
				}
			}
		}
		return nil, nil, false
	})
	return l
}

func place(topic string, partition int32) string { return topic + "/" + strconv.Itoa(int(partition)) }

func (l *commitLog) assert(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.broken {
		t.Error(b)
	}
	if l.commits == 0 {
		t.Error("no commit was seen")
	}
}

// K2: the committed offset of a partition never falls and never passes a message that is not settled.
func TestK2CommitsNeverPassUnfinishedOffset(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 2)
	c := client(t, addr)
	const each = 1500
	for p := range 2 {
		produce(t, c, "orders", p, numbered(p*each, (p+1)*each)...)
	}
	var mu sync.Mutex
	done := make(map[string]bool)
	log := watchCommits(cluster)
	log.check = func(at string, offset int64) {
		mu.Lock()
		defer mu.Unlock()
		for i := range offset {
			if !done[at+"/"+strconv.FormatInt(i, 10)] {
				t.Errorf("%s: %d was committed, %d is not done", at, offset, i)
				return
			}
		}
	}
	processor := &recorder{handle: func(_ context.Context, m inbox.Message) (inbox.Result, error) {
		if rand.N(50) == 0 {
			return inbox.Result{Outcome: inbox.Failed, RetryAfter: rand.N(5 * time.Millisecond)}, nil
		}
		mu.Lock()
		defer mu.Unlock()
		done[m.Position] = true
		return processed, nil
	}}
	config := quick(addr)
	config.KeyParallelism = 8
	r := consume(t, config, processor)
	for p := range 2 {
		awaitCommitted(t, c, "orders", p, each)
	}
	r.stop()
	log.assert(t)
	if log.commits > 100 {
		t.Errorf("%d commits for %d messages: they are to be coalesced", log.commits, 2*each)
	}
}

// K3: only the partitions of the current assignment are committed, and a group is never rewound, through a storm of
// rebalances.
func TestK3CommitsOnlyWhatIsAssigned(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 6)
	c := client(t, addr)
	log := watchCommits(cluster)
	processor := &recorder{}
	base := consume(t, quick(addr), processor)
	n := 0
	for range 5 {
		guests := []*running{consume(t, quick(addr), processor), consume(t, quick(addr), processor)}
		for p := range 6 {
			produce(t, c, "orders", p, numbered(n, n+50)...)
			n += 50
		}
		for _, g := range guests {
			g.await(kafka.EventJoined)
		}
		for _, g := range guests {
			g.stop()
		}
	}
	eventually(t, "all messages", func() bool { return processor.distinct() == n })
	base.stop()
	log.assert(t)
}

// K3: a commit that the broker refuses because the generation is over is dropped: it is not retried in the next one.
func TestK3RefusedCommitsAreDropped(t *testing.T) {
	for name, code := range map[string]*kerr.Error{
		"illegal generation": kerr.IllegalGeneration, "unknown member": kerr.UnknownMemberID, "rebalance": kerr.RebalanceInProgress,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			cluster, addr := fakeCluster(t, 1)
			c := client(t, addr)
			refused := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: code, Count: 1})
			processor := &recorder{}
			r := consume(t, quick(addr), processor)
			produce(t, c, "orders", 0, numbered(0, 5)...)
			r.await(kafka.EventCommitDropped)
			r.await(kafka.EventDrained) // the generation ends with it
			if len(r.seen(kafka.EventCommitFailed)) > 0 || refused.Hits() != 1 {
				t.Errorf("the refused commit was tried again: %v", r.seen(kafka.EventCommitFailed))
			}
			produce(t, c, "orders", 0, numbered(5, 10)...)
			awaitCommitted(t, c, "orders", 0, 10)
			r.stop()
		})
	}
}

// K3: a generation that commits nothing any more says so once, attempts nothing more, and ends, even where the broker
// takes its heartbeats: nothing is handled for long whose offset can't be committed.
func TestK3RefusalEndsTheGenerationAndIsSaidOnce(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	const total = 300
	produce(t, c, "orders", 0, numbered(0, total)...)
	refused := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.IllegalGeneration, Count: -1})
	config := quick(addr)
	config.HeartbeatInterval = 2 * time.Second // long after the refusal
	config.KeyParallelism = 4
	processor := &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		<-time.After(5 * time.Millisecond) // the work: settles go on while the refusal comes
		return processed, nil
	}}
	r := consume(t, config, processor)
	eventually(t, "three generations", func() bool { return len(r.seen(kafka.EventDrained)) >= 3 })
	refused.Remove()
	awaitCommitted(t, c, "orders", 0, total)
	r.stop()
	dropped, generations := len(r.seen(kafka.EventCommitDropped)), len(r.seen(kafka.EventDrained))
	if hits := refused.Hits(); hits != dropped || dropped < 3 || dropped > generations {
		t.Errorf("%d commits were refused and %d reported in %d generations", hits, dropped, generations)
	}
}
