package outbox_test

import (
	"context"
	"maps"
	"time"

	"github.com/onceward/onceward/outbox"
)

func (s *fakeStore) Relays(context.Context, int) ([]outbox.RelayStatus, error) {
	return nil, errNotFaked
}

func (s *fakeStore) Holders(context.Context) ([]outbox.Holder, error) { return nil, errNotFaked }

func (s *fakeStore) Replay(ctx context.Context, relay string, from int64) error {
	return s.operate(ctx, "Replay", relay, func(r *fakeRelay) {
		for i := range r.lanes {
			r.lanes[i].position.Replay = from
		}
		maps.DeleteFunc(r.aside, func(number int64, _ *fakeAside) bool { return number >= from })
	})
}

// operate changes lanes, all of which get the next epoch and no owner.
func (s *fakeStore) operate(ctx context.Context, name, relay string, change func(r *fakeRelay)) error {
	return s.statement(ctx, name, func() error {
		r := s.relays[relay]
		if r == nil {
			return outbox.ErrNoRelay
		}
		change(r)
		for i := range r.lanes {
			r.lanes[i].owner = ""
			r.lanes[i].epoch++
		}
		return nil
	})
}

func (s *fakeStore) FirstSince(context.Context, time.Time) (int64, error) { return 0, errNotFaked }

func (s *fakeStore) Skip(ctx context.Context, relay string, number int64) error {
	return s.operate(ctx, "Skip", relay, func(r *fakeRelay) {
		lane := laneOf(s.log[number-1], len(r.lanes))
		r.aside[number] = &fakeAside{Aside: outbox.Aside{Number: number, Lane: lane, State: outbox.Skipped}}
	})
}

func (s *fakeStore) SetAside(context.Context, string, outbox.Filter) ([]outbox.AsideEvent, error) {
	return nil, errNotFaked
}

// Redrive has all dead letters published again.
func (s *fakeStore) Redrive(ctx context.Context, relay string, _ outbox.Filter) (n int, err error) {
	err = s.operate(ctx, "Redrive", relay, func(r *fakeRelay) {
		for _, a := range r.aside {
			if a.State == outbox.Dead {
				n++
				a.State, a.Attempts, a.due = outbox.Delayed, 0, time.Now()
				if r.Policy == outbox.ParkKey && a.KeyHash != "" {
					a.State = outbox.Retrying
				}
			}
		}
	})
	return n, err
}

func (s *fakeStore) Discard(context.Context, string, outbox.Filter) (int, error) {
	return 0, errNotFaked
}

func (s *fakeStore) ChangeLanes(context.Context, string, int) error { return errNotFaked }

func (s *fakeStore) Remove(ctx context.Context, relay string) error {
	return s.statement(ctx, "Remove", func() error {
		delete(s.relays, relay)
		return nil
	})
}

// mend changes an event in the log, as an operator may.
func (s *fakeStore) mend(number int64, change func(e *outbox.Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.log[number-1].Event)
}

// states are the states of what is set aside, by ID.
func (s *fakeStore) states(relay string) map[string]outbox.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[string]outbox.State{}
	for number, a := range s.relays[relay].aside {
		states[s.log[number-1].ID] = a.State
	}
	return states
}
