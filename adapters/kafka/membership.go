package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

// ghostPatience is how long a join may take before a member that was left
// behind in the group is suspected to hold it up.
const ghostPatience = 300 * time.Millisecond

// membership is our place in the group. kafka-go forgets its member ID when the
// coordinator can't be reached, and joins as somebody new when it is back. The
// old member then stays in the group, and every rebalance waits for it until
// its session ends. So we send it away ourselves.
type membership struct {
	group  *kafka.ConsumerGroup
	client *kafka.Client
	id     string

	member string // of the last generation
	ghost  string // a member of ours that kafka-go has forgotten
}

// next waits for the next generation.
func (m *membership) next(ctx context.Context) (*kafka.Generation, error) {
	for {
		generation, overdue, err := m.tryNext(ctx)
		switch {
		case err == nil:
			m.member, m.ghost = generation.MemberID, ""
			return generation, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case overdue:
			m.dismiss(ctx)
			continue
		case !errors.Is(err, kafka.RebalanceInProgress) && m.member != "":
			m.member, m.ghost = "", m.member
		}
		return nil, err
	}
}

// tryNext waits for the next generation; where a ghost may hold it up, no longer
// than ghostPatience. Then it is overdue: its own clock says so, because a dial
// that timed out returns an error that is context.DeadlineExceeded, too.
func (m *membership) tryNext(ctx context.Context) (g *kafka.Generation, overdue bool, err error) {
	if m.ghost == "" {
		g, err = m.group.Next(ctx)
		return g, false, err
	}
	waiting, cancel := context.WithTimeout(ctx, ghostPatience)
	defer cancel()
	g, err = m.group.Next(waiting)
	return g, err != nil && waiting.Err() != nil, err
}

// dismiss removes the forgotten member from the group.
func (m *membership) dismiss(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, coordinatorTimeout)
	defer cancel()
	response, err := m.client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{
		GroupID: m.id, Members: []kafka.LeaveGroupRequestMember{{ID: m.ghost}},
	})
	// kafka-go reads the answer's own error into Throttle.
	if err != nil || response.Throttle != 0 {
		return
	}
	for _, member := range response.Members {
		if member.Error == nil || errors.Is(member.Error, kafka.UnknownMemberId) {
			m.ghost = ""
		}
	}
}
