package main

import (
	"strings"
	"testing"
)

func TestReportTellsLostFromDoubled(t *testing.T) {
	t.Parallel()
	orders := []order{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	tests := map[string]struct {
		effects       map[string]int
		lost, doubled int
	}{
		"exactly once":                  {map[string]int{"a": 1, "b": 1, "c": 1}, 0, 0},
		"nothing":                       {nil, 3, 0},
		"one missing":                   {map[string]int{"a": 1, "c": 1}, 1, 0},
		"one doubled":                   {map[string]int{"a": 1, "b": 3, "c": 1}, 0, 2},
		"a missing one hides no double": {map[string]int{"a": 2, "b": 1}, 1, 1},
		"never sent":                    {map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, 0, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := report{orders: orders, effects: test.effects}
			if r.lost() != test.lost || r.doubled() != test.doubled {
				t.Errorf("lost %d, doubled %d; want %d, %d", r.lost(), r.doubled(), test.lost, test.doubled)
			}
			if r.exactlyOnce() != (test.lost == 0 && test.doubled == 0) {
				t.Errorf("exactlyOnce is %v", r.exactlyOnce())
			}
		})
	}
}

func TestReportShowsEveryFigure(t *testing.T) {
	t.Parallel()
	r := report{sent: 2000, kills: 4, seen: sighting{Delivered: 12345, Duplicates: 1002}, orders: []order{{ID: "a"}}}
	table := r.String()
	for _, want := range []string{"sent", "2,000", "delivered", "12,345", "duplicates", "1,002", "effects", "lost", "doubled"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table does not show %q:\n%s", want, table)
		}
	}
}
