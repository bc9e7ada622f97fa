package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onceward/onceward/outbox"
)

func (s *fakeStore) Register(ctx context.Context, r outbox.Registration) error {
	return s.statement(ctx, "Register", func() error {
		if known := s.relays[r.Relay]; known != nil {
			if known.Lanes != r.Lanes || known.Policy != r.Policy {
				return fmt.Errorf("lanes or policy: %w", outbox.ErrSettings)
			}
			return nil
		}
		s.relays[r.Relay] = &fakeRelay{
			Registration: r, lanes: make([]fakeLane, r.Lanes), instances: map[string]time.Time{}, aside: map[int64]*fakeAside{},
		}
		return nil
	})
}

func (s *fakeStore) Lease(ctx context.Context, relay, instance string, lease time.Duration) (result outbox.Lease, err error) {
	err = s.statement(ctx, "Lease", func() error {
		r := s.relays[relay]
		if r == nil {
			return outbox.ErrNoRelay
		}
		r.instances[instance] = time.Now().Add(lease)
		live := r.live()
		result.Share = len(r.lanes) / len(live)
		if slices.Index(live, instance) < len(r.lanes)%len(live) {
			result.Share++
		}
		owned := 0
		for i := range r.lanes {
			if r.lanes[i].owner == instance {
				owned++
			}
		}
		for i := range r.lanes {
			l := &r.lanes[i]
			if owned < result.Share && (l.owner == "" || !slices.Contains(live, l.owner)) {
				l.owner = instance
				l.epoch++
				owned++
			}
		}
		var numbers []int
		for i, l := range r.lanes {
			if l.owner == instance {
				result.Lanes = append(result.Lanes, outbox.OwnedLane{Lane: i, Epoch: l.epoch, Position: l.position})
				numbers = append(numbers, i)
			}
		}
		result.Due = s.nextDue(r, numbers)
		return nil
	})
	return result, err
}

// live are the names of the instances whose lease lasts.
func (r *fakeRelay) live() []string {
	var live []string
	for _, name := range slices.Sorted(maps.Keys(r.instances)) {
		if time.Now().Before(r.instances[name]) {
			live = append(live, name)
		}
	}
	return live
}

func (s *fakeStore) Leave(ctx context.Context, relay, instance string) error {
	return s.statement(ctx, "Leave", func() error {
		if r := s.relays[relay]; r != nil {
			delete(r.instances, instance)
			for i := range r.lanes {
				if r.lanes[i].owner == instance {
					r.lanes[i].owner = ""
				}
			}
		}
		return nil
	})
}
