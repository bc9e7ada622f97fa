package kafka_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/adapters/kafka"
)

// K19: a broker that is not ready to coordinate is asked again, with backoff, and that is said once.
func TestK19CoordinatorThatIsNotReady(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 3)...)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.CoordinatorNotAvailable, Count: 4})
	r := consume(t, quick(addr), &recorder{})
	awaitCommitted(t, c, "orders", 0, 3)
	r.stop()
	if n := len(r.seen(kafka.EventRetry)); n != 1 {
		t.Errorf("%d events, want one for the row of failures", n)
	}
	if event := r.await(kafka.EventRecovered); event.Count != 4 {
		t.Errorf("event %+v, want 4 failures", event)
	}
}

// K19: a session timeout outside the broker's bounds is a config error that names both.
func TestK19SessionTimeoutOutsideTheBrokersBounds(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	config := quick(addr)
	config.SessionTimeout, config.HeartbeatInterval = 500*time.Millisecond, 100*time.Millisecond
	err := consume(t, config, &recorder{}).result()
	if err == nil || !strings.Contains(err.Error(), "SessionTimeout") || !strings.Contains(err.Error(), "group.min.session.timeout.ms") {
		t.Errorf("error %v", err)
	}
}

// K15: a group of another kind is an error with a way out, not a loop.
func TestK15GroupOfAnotherKind(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.InconsistentGroupProtocol, Count: -1})
	err := consume(t, quick(addr), &recorder{}).result()
	if err == nil || !strings.Contains(err.Error(), `"billing"`) || !strings.Contains(err.Error(), "new Group") {
		t.Errorf("error %v", err)
	}
}

// K19: more members than partitions: the idle one waits, and does not spin.
func TestK19MemberWithoutPartitionsWaits(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1)
	joins := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1, TopLevel: true})
	first := consume(t, quick(addr), &recorder{})
	first.await(kafka.EventJoined)
	second := consume(t, quick(addr), &recorder{})
	second.await(kafka.EventJoined)
	eventually(t, "both assigned", func() bool { return len(first.seen(kafka.EventJoined)) == 2 })
	before, until := joins.Hits(), time.Now().Add(1500*time.Millisecond)
	eventually(t, "time", func() bool { return time.Now().After(until) })
	if n := joins.Hits() - before; n > 0 {
		t.Errorf("%d joins while nothing happened", n)
	}
	first.stop()
	second.stop()
}

// K19: partitions that are added at run time are picked up.
func TestK19AddedPartitionsArePickedUp(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	processor := &recorder{}
	r := consume(t, quick(addr), processor)
	r.await(kafka.EventJoined)
	addPartitions(t, c, "orders", 3)
	fresh := client(t, addr)
	for p := range 3 {
		produce(t, fresh, "orders", p, numbered(p*10, p*10+10)...)
	}
	eventually(t, "all messages", func() bool { return processor.distinct() == 30 })
	r.await(kafka.EventPartitionsChanged)
	r.stop()
}

// K19: a topic that is deleted neither starves the others nor makes the group spin, and when it is made again it is
// read from its start.
func TestK19DeletedTopicStarvesNothingAndComesBack(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1, kfake.SeedTopics(1, "refunds"))
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 10)...)
	produce(t, c, "refunds", 0, numbered(10, 20)...)
	joins := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1, TopLevel: true})
	processor := &recorder{}
	first := consume(t, quick(addr, "orders", "refunds"), processor)
	awaitCommitted(t, c, "orders", 0, 10)
	awaitCommitted(t, c, "refunds", 0, 10)

	if err := cluster.DeleteTopic("orders"); err != nil {
		t.Fatal(err)
	}
	first.await(kafka.EventTopicMissing)
	second := consume(t, quick(addr, "refunds"), processor) // the topic is still missing in the next generation
	second.await(kafka.EventJoined)
	second.stop()
	before := joins.Hits()
	produce(t, c, "refunds", 0, numbered(20, 30)...)
	awaitCommitted(t, c, "refunds", 0, 20)
	if n := joins.Hits() - before; n > 4 {
		t.Errorf("%d joins", n)
	}

	if err := cluster.CreateTopic("orders", 1, nil); err != nil {
		t.Fatal(err)
	}
	produce(t, client(t, addr), "orders", 0, numbered(30, 35)...)
	eventually(t, "the new topic's messages", func() bool { return processor.distinct() == 35 })
	awaitCommitted(t, c, "orders", 0, 5)
	first.stop()
}

// K19: while a new version that reads more topics is rolled out, the group's leader may not read them itself. Deleted ones
// starve nothing then, either, and added partitions are picked up.
func TestK19LeaderCaresForTopicsOfOtherMembers(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeCluster(t, 1, kfake.SeedTopics(1, "refunds", "invoices"))
	c := client(t, addr)
	leader := consume(t, quick(addr), &recorder{})
	leader.await(kafka.EventJoined)
	processor := &recorder{}
	other := consume(t, quick(addr, "orders", "refunds", "invoices"), processor)
	produce(t, c, "refunds", 0, numbered(0, 10)...)
	awaitCommitted(t, c, "refunds", 0, 10)

	if err := cluster.DeleteTopic("invoices"); err != nil {
		t.Fatal(err)
	}
	other.await(kafka.EventTopicMissing)
	third := consume(t, quick(addr), &recorder{}) // the topic is missing in the next generation
	third.await(kafka.EventJoined)
	produce(t, c, "refunds", 0, numbered(10, 20)...)
	awaitCommitted(t, c, "refunds", 0, 20)

	addPartitions(t, c, "refunds", 2)
	produce(t, client(t, addr), "refunds", 1, numbered(20, 30)...)
	eventually(t, "the new partition's messages", func() bool { return processor.distinct() == 30 })
	leader.await(kafka.EventPartitionsChanged)
	for _, r := range []*running{third, other, leader} {
		r.stop()
	}
}
