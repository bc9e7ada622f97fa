package main

import "testing"

func TestRetriesRepeatEveryOrderOnceAndLater(t *testing.T) {
	t.Parallel()
	orders := newOrders(500)
	first, copies := map[string]int{}, map[string]int{}
	apart := 0
	for i, o := range withRetries(orders) {
		if copies[o.ID]++; copies[o.ID] == 1 {
			first[o.ID] = i
		} else if i > first[o.ID]+1 {
			apart++
		}
	}
	if len(copies) != len(orders) {
		t.Fatalf("%d ids were sent, want %d", len(copies), len(orders))
	}
	for id, n := range copies {
		if n != 2 {
			t.Errorf("%s was sent %d times, want 2", id, n)
		}
	}
	if apart == 0 {
		t.Error("every copy follows its original at once: no other message comes between")
	}
}
