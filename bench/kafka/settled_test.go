package main

import (
	"strings"
	"testing"
)

func TestMessageIsKnownByItsOrder(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 65_535, 65_536, 4_000_000} {
		if p, got, err := messageOf(orderOf(7, n)); p != 7 || got != n || err != nil {
			t.Errorf("message %d of partition 7 is known as %d of %d, %v", n, got, p, err)
		}
	}
	for _, id := range []string{"", "019a0000-0000-7000-8000-", orderOf(partitions, 0), orderOf(0, 1)[1:]} {
		if _, _, err := messageOf(id); err == nil {
			t.Errorf("%q is taken for an order of the topic", id)
		}
	}
}

func TestWhatWasDoneIsCommittedAndNothingElse(t *testing.T) {
	t.Parallel()
	o := offsets{0: 3, 7: 4}
	if err := o.matchDone(7); err != nil {
		t.Error(err)
	}
	for _, done := range []int{6, 8} {
		if o.matchDone(done) == nil {
			t.Errorf("no error for %d messages", done)
		}
	}
}

func TestOrdersWithAnEffectAreThoseBeforeTheOffsets(t *testing.T) {
	t.Parallel()
	exact := []string{orderOf(1, 0), orderOf(1, 1), orderOf(2, 0)}
	for name, c := range map[string]struct {
		committed offsets
		orders    []string
		want      string
	}{
		"exact":                        {offsets{1: 2, 2: 1}, exact, ""},
		"nothing at all":               {offsets{}, nil, ""},
		"committed and not handled":    {offsets{1: 3, 2: 1}, exact, "partition 1: 3 messages were committed, of which 1 had no effect"},
		"handled and not committed":    {offsets{1: 2}, exact, "partition 2: 0 messages were committed, of which 0 had no effect; 1 others"},
		"one too many for one too few": {offsets{1: 1, 2: 2}, exact, "partition 1: 1 messages were committed, of which 0 had no effect; 1 others"},
		"a gap":                        {offsets{1: 2}, []string{orderOf(1, 0), orderOf(1, 2)}, "partition 1: 2 messages were committed, of which 1 had no effect"},
		"twice":                        {offsets{1: 2, 2: 1}, append([]string{orderOf(1, 1)}, exact...), "partition 1: message 1 had its effect twice"},
		"another topic's":              {offsets{}, []string{"else"}, "else"},
	} {
		err := c.committed.matchEffects(c.orders)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}
