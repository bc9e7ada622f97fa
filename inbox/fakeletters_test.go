package inbox_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func sameKey(a, b inbox.Message) bool { return a.Topic == b.Topic && bytes.Equal(a.Key, b.Key) }

func (s *fakeStore) ParkedKeys(_ context.Context, _ *fakeTx, consumer, topic string, keys [][]byte) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lockedTopics = append(s.lockedTopics, topic)
	parked := make([]bool, len(keys))
	for i, key := range keys {
		parked[i] = slices.ContainsFunc(s.letters, func(l inbox.DeadLetter) bool {
			return l.ParksKey && l.Consumer == consumer && sameKey(l.Message, inbox.Message{Topic: topic, Key: key})
		})
	}
	return parked, nil
}

func (s *fakeStore) AddDeadLetters(_ context.Context, tx *fakeTx, letters []inbox.DeadLetter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case tx.over:
		return errConnection
	case tx.spoiled: // as a real store says of its own statements
		return fmt.Errorf("%w: %w", idempotency.ErrUnavailable, errSpoiled)
	}
	tx.letters = append(tx.letters, letters...)
	return nil
}

func (s *fakeStore) DeadLetters(_ context.Context, consumer string, filter inbox.Filter) ([]inbox.DeadLetter, error) {
	if err := next(s, &s.listFaults); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = append(s.listed, filter)
	selected, err := s.selected(consumer, filter)
	if filter.Brief {
		for i := range selected {
			selected[i].Message.Payload, selected[i].Message.Headers = nil, nil
		}
	}
	return selected, err
}

// selected honours every field of Filter. A field that it does not know makes
// the conversion fail to compile.
func (s *fakeStore) selected(consumer string, filter inbox.Filter) (selected []inbox.DeadLetter, err error) {
	type known struct {
		Numbers       []int64
		After         int64
		Reason        inbox.Reason
		Topic         string
		MessageID     string
		Key           []byte
		Since, Before time.Time
		Limit         int
		Brief         bool
	}
	f := known(filter)
	if f.Limit <= 0 {
		return nil, fmt.Errorf("fake: Filter.Limit is %d: a store gets a positive one", f.Limit)
	}
	for _, letter := range s.letters {
		m := letter.Message
		if letter.Consumer == consumer && len(selected) < f.Limit && letter.Number > f.After &&
			(f.Numbers == nil || slices.Contains(f.Numbers, letter.Number)) &&
			(f.Reason == "" || letter.Reason == f.Reason) &&
			(f.Topic == "" || m.Topic == f.Topic) &&
			(f.MessageID == "" || m.ID == f.MessageID) &&
			(f.Key == nil || m.Key != nil && bytes.Equal(m.Key, f.Key)) &&
			(f.Since.IsZero() || !letter.CreatedAt.Before(f.Since)) &&
			(f.Before.IsZero() || letter.CreatedAt.Before(f.Before)) {
			selected = append(selected, letter)
		}
	}
	return selected, nil
}

func (s *fakeStore) TakeDeadLetter(ctx context.Context, consumer string, number int64, work func(context.Context, *fakeTx, inbox.DeadLetter) error) error {
	s.mu.Lock()
	i := slices.IndexFunc(s.letters, func(l inbox.DeadLetter) bool { return l.Number == number && l.Consumer == consumer })
	if i < 0 {
		s.mu.Unlock()
		return inbox.ErrGone
	}
	letter := s.letters[i]
	for _, older := range s.letters[:i] {
		if letter.ParksKey && older.ParksKey && sameKey(older.Message, letter.Message) {
			s.mu.Unlock()
			return inbox.ErrBehind
		}
	}
	s.mu.Unlock()
	return s.transaction(ctx, nil, func(tx *fakeTx, _ []idempotency.Verdict) error {
		tx.taken = number
		return work(ctx, tx, letter)
	})
}

func (s *fakeStore) FailDeadLetter(_ context.Context, _ string, number int64, cause string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.letters {
		if s.letters[i].Number == number {
			s.letters[i].Attempts++
			s.letters[i].Error = cause
			return nil
		}
	}
	return inbox.ErrGone
}

func (s *fakeStore) DiscardDeadLetters(_ context.Context, consumer string, filter inbox.Filter) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = append(s.listed, filter)
	selected, err := s.selected(consumer, filter)
	s.letters = slices.DeleteFunc(s.letters, func(l inbox.DeadLetter) bool {
		return slices.ContainsFunc(selected, func(d inbox.DeadLetter) bool { return d.Number == l.Number })
	})
	return len(selected), err
}
