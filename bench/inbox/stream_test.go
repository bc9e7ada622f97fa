package main

import (
	"testing"
	"time"
)

func TestEveryBatchOfARedeliveredStreamComesTwice(t *testing.T) {
	t.Parallel()
	s := stream{ids: timeOrdered, redelivered: true, start: time.Now()}
	for _, share := range s.share(2*s.step(), 2) {
		for i := range batchSize {
			if share[i].ID != share[i+batchSize].ID {
				t.Fatalf("delivery %d has ID %s, its copy a batch later %s", i, share[i].ID, share[i+batchSize].ID)
			}
		}
	}
	if got, want := distinct(s.share(2*s.step(), 2)), s.step(); got != want {
		t.Errorf("%d different messages, want %d", got, want)
	}
}

func TestRoundsHaveTheSameIdsForEverySideAndOthersThanTheRoundBefore(t *testing.T) {
	t.Parallel()
	for _, ids := range []idKind{timeOrdered, random} {
		first := stream{ids: ids, start: time.Now()}
		second := first
		second.round = 1
		one, again, next := first.share(1000, 1)[0], first.share(1000, 8), second.share(1000, 1)[0]
		seen := make(map[string]bool)
		for i, m := range one {
			if same := again[i%8][i/8]; m.ID != same.ID {
				t.Fatalf("%s: message %d is %s for one side and %s for another", ids, i, m.ID, same.ID)
			}
			seen[m.ID] = true
			if i > 0 && ids == timeOrdered && m.ID <= one[i-1].ID {
				t.Fatalf("message %d: %s is not after %s", i, m.ID, one[i-1].ID)
			}
		}
		if len(seen) != len(one) {
			t.Errorf("%s: %d different ids of %d messages", ids, len(seen), len(one))
		}
		for _, m := range next {
			if seen[m.ID] {
				t.Fatalf("%s: id %s of the first round comes again in the second", ids, m.ID)
			}
		}
	}
}

func TestOlderRecordsAreOtherThanTheMessagesAndBeforeThemInTime(t *testing.T) {
	t.Parallel()
	for _, ids := range []idKind{timeOrdered, random} {
		s := stream{ids: ids, start: time.Now()}
		first := make(map[string]bool)
		for round := range 2 {
			s.round = round
			for _, m := range s.share(1000, 1)[0] {
				first[m.ID] = true
			}
		}
		id := s.older()
		for n := range 1000 {
			older := id(n)
			if first[older] {
				t.Fatalf("%s: %s is a message as well", ids, older)
			}
			for message := range first {
				if ids == timeOrdered && older >= message {
					t.Fatalf("older id %s is after the message %s", older, message)
				}
			}
		}
	}
}
