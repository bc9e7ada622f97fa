package main

import (
	"fmt"
	"strconv"
	"strings"
)

// report is what the run found out.
type report struct {
	sent  int // messages
	kills int
	seen  sighting // the sum over all consumer processes
	// effects is the ledger: entries per order id.
	effects map[string]int
	orders  []order
}

func (r *report) entries() (n int) {
	for _, count := range r.effects {
		n += count
	}
	return n
}

// lost is the number of orders without an effect.
func (r *report) lost() (n int) {
	for _, o := range r.orders {
		if r.effects[o.ID] == 0 {
			n++
		}
	}
	return n
}

// doubled is the number of effects too many: of orders that have more than one,
// or that nobody sent.
func (r *report) doubled() int {
	return r.entries() - (len(r.orders) - r.lost())
}

// cutOff is the number of deliveries that a kill left undecided.
func (r *report) cutOff() int {
	return r.seen.Delivered - r.seen.Duplicates - r.seen.Parked - r.entries()
}

func (r *report) exactlyOnce() bool { return r.lost() == 0 && r.doubled() == 0 }

// String is the table that a run ends with.
func (r *report) String() string {
	var table strings.Builder
	row := func(name string, n int, meaning string) {
		fmt.Fprintf(&table, "  %-10s %7s  %s\n", name, grouped(n), meaning)
	}
	row("sent", r.sent, fmt.Sprintf("messages: %s orders, each of them twice", grouped(len(r.orders))))
	row("kills", r.kills, "of the consumer, in the middle of its work")
	row("delivered", r.seen.Delivered, "messages that reached the inbox, over all restarts")
	row("cut off", r.cutOff(), "of these were in the hands of a killed consumer, and came again")
	row("duplicates", r.seen.Duplicates, "of these were recognised and not handled again")
	if r.seen.Parked > 0 {
		row("parked", r.seen.Parked, "of these were set aside as dead letters: the handler failed")
	}
	row("effects", r.entries(), "entries in the ledger")
	row("lost", r.lost(), "orders without an entry")
	row("doubled", r.doubled(), "entries too many")
	return table.String()
}

// grouped writes 12345 as 12,345.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
