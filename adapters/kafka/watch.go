package kafka

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/onceward/onceward/inbox"
)

// metadataInterval is how often the number of partitions is looked at, in the
// transport's own picture of the cluster: it costs no request, but for topics that
// only other members read.
const metadataInterval = time.Second

// assignor assigns partitions when this member leads the group. It adds to
// kafka-go's what that misses: where one topic is unknown, kafka-go finds no
// partition of any topic, so a deleted topic would starve the others. It also
// remembers what was assigned, to tell later whether partitions were added. It does
// so for the topics of all members: while a new version that reads more of them is
// rolled out, one that does not may lead.
//
// Its protocol has a name of its own. kafka-go calls its "range", as Java does,
// but writes it in a form that Java's leader fails on: a consumer of ours that
// was given a Java group's name by mistake would take down that group. With
// this name the coordinator refuses it instead.
type assignor struct {
	kafka.RangeGroupBalancer
	count func(ctx context.Context, topics []string) (map[string]int, error)

	mu       sync.Mutex
	assigned map[string]int // partitions by topic of any member; nil if we did not lead
}

func (a *assignor) ProtocolName() string { return "onceward-range" }

func (a *assignor) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	known := make(map[string]int)
	for _, m := range members {
		for _, topic := range m.Topics {
			known[topic] = 0
		}
	}
	for _, p := range partitions {
		known[p.Topic]++
	}
	ctx, cancel := context.WithTimeout(context.Background(), coordinatorTimeout)
	defer cancel()
	counts, err := a.count(ctx, slices.Collect(maps.Keys(known)))
	if err == nil {
		for topic, n := range counts {
			for id := known[topic]; id < n; id++ {
				partitions = append(partitions, kafka.Partition{Topic: topic, ID: id})
			}
			known[topic] = max(known[topic], n)
		}
	}
	a.mu.Lock()
	a.assigned = known
	a.mu.Unlock()
	// kafka-go deals them out as they come; sorted, the same members get the
	// same partitions in every generation.
	slices.SortFunc(partitions, func(x, y kafka.Partition) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.ID, y.ID))
	})
	return a.RangeGroupBalancer.AssignGroups(members, partitions)
}

// take returns what this member assigned as the leader since the last call.
func (a *assignor) take() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	assigned := a.assigned
	a.assigned = nil
	return assigned
}

// countPartitions returns the number of partitions by topic; topics that don't
// exist are left out, and so are those that are not ours if they can't be asked for: of
// them the transport has no picture.
func (c *consumer) countPartitions(ctx context.Context, topics []string) (map[string]int, error) {
	var others []string
	for _, topic := range topics {
		if !slices.Contains(c.config.Topics, topic) {
			others = append(others, topic)
		}
	}
	response, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: c.config.Topics})
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int, len(topics))
	for _, topic := range response.Topics {
		if topic.Error == nil {
			counts[topic.Name] = len(topic.Partitions)
		}
	}
	if len(others) == 0 {
		return counts, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := c.client.Transport.RoundTrip(ctx, c.client.Addr, &metadataRequest{Request: metadata.Request{TopicNames: others}})
	if err != nil {
		return counts, nil // Ours must not starve for them, and it is asked again soon.
	}
	for _, topic := range answer.(metadataAnswer).Topics {
		if topic.ErrorCode == 0 {
			counts[topic.Name] = len(topic.Partitions)
		}
	}
	return counts, nil
}

// watchPartitions closes g.changed for a rebalance when a topic that had gone is
// back and, where this member leads the group, when partitions were added that
// nobody has.
func (g *generation) watchPartitions(ctx context.Context) {
	assigned := g.assignor.take()
	topics := slices.Clone(g.config.Topics)
	for topic := range assigned {
		if !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	for sleep(ctx, metadataInterval) {
		counts, err := g.countPartitions(ctx, topics)
		if err != nil {
			continue // the fetchers report it
		}
		for i, topic := range topics {
			n := counts[topic]
			ours := i < len(g.config.Topics)
			switch {
			case ours && n == 0 && g.offsets.lose(topic):
				for _, p := range g.partitions {
					if p.topic == topic {
						p.gone.Store(true)
					}
				}
				g.events.report(ctx, inbox.Event{Kind: EventTopicMissing, Count: 1, Message: inbox.Message{Topic: topic}})
			case ours && n > 0 && g.offsets.find(topic), assigned != nil && n > assigned[topic]:
				g.events.report(ctx, inbox.Event{Kind: EventPartitionsChanged, Count: n, Message: inbox.Message{Topic: topic}})
				close(g.changed)
				return
			}
		}
	}
}
