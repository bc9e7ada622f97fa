package outbox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
)

// ledgerTables are what writers write beside their events; nothing in them helps the product.
const ledgerTables = `CREATE TABLE tally (key text PRIMARY KEY, number bigint NOT NULL);
	CREATE TABLE ledger (id text NOT NULL, key text NOT NULL, number bigint NOT NULL)`

// entry is one committed event of the ledger. Events without a key have no number.
type entry struct {
	id, key string
	number  int64
}

// eventID is the identity of the event with a number of a key.
func eventID(key string, number int64) string { return fmt.Sprintf("%s-%06d", key, number) }

// readLedger returns what has been committed so far.
func readLedger(t testing.TB, pool *pgxpool.Pool) []entry {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT id, key, number FROM ledger ORDER BY key, number`)
	if err != nil {
		t.Fatalf("read the ledger: %v", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
		return e, row.Scan(&e.id, &e.key, &e.number)
	})
	if err != nil {
		t.Fatalf("read the ledger: %v", err)
	}
	return entries
}

// journal is what was published, in the order of publishing.
type journal struct {
	mu      sync.Mutex
	ids     []string
	copies  map[string]int
	changed chan struct{} // closed and renewed by each entry
}

func newJournal() *journal {
	return &journal{copies: map[string]int{}, changed: make(chan struct{})}
}

func (j *journal) write(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ids = append(j.ids, id)
	j.copies[id]++
	close(j.changed)
	j.changed = make(chan struct{})
}

// published is everything so far.
func (j *journal) published() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ids)
}

func (j *journal) has(ids ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id string) bool { return j.copies[id] == 0 })
}

// distinct is how many events were published.
func (j *journal) distinct() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.copies)
}

// await waits until all of the entries were published.
func (j *journal) await(t testing.TB, what string, entries []entry) {
	t.Helper()
	missing := entries
	eventually(t, what, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for len(missing) > 0 && j.copies[missing[0].id] > 0 {
			missing = missing[1:]
		}
		return len(missing) == 0
	})
}

// verdict is what a comparison of the ledger with the published ids shows.
type verdict struct {
	published                         int // distinct
	lost, foreign, copied, disordered []string
}

// judge compares. The order of one key is that of its first copies.
func judge(ledger []entry, published []string) (v verdict) {
	committed := make(map[string]entry, len(ledger))
	for _, e := range ledger {
		committed[e.id] = e
	}
	seen := make(map[string]bool, len(ledger))
	last := map[string]int64{} // by key
	for _, id := range published {
		e, known := committed[id]
		switch {
		case seen[id]:
			v.copied = append(v.copied, id)
			continue
		case !known:
			v.foreign = append(v.foreign, id)
		case e.key != "" && e.number <= last[e.key]:
			v.disordered = append(v.disordered, id)
		}
		seen[id] = true
		last[e.key] = max(last[e.key], e.number)
		v.published++
	}
	for _, e := range ledger {
		if !seen[e.id] {
			v.lost = append(v.lost, e.id)
		}
	}
	return v
}

func (v verdict) String() string {
	some := func(ids []string) string { return fmt.Sprintf("%d %v", len(ids), ids[:min(len(ids), 10)]) }
	return fmt.Sprintf("%d published: lost %s, never committed %s, out of order %s, copied %s",
		v.published, some(v.lost), some(v.foreign), some(v.disordered), some(v.copied))
}

// wantNoCopies is the verdict of a run without a crash.
func wantNoCopies(t testing.TB, what string, v verdict) {
	t.Helper()
	wantInOrder(t, what, v)
	if len(v.copied) > 0 {
		t.Errorf("%s: copies without a crash: %v", what, v)
	}
}

// wantInOrder is the verdict of every run: copies are allowed.
func wantInOrder(t testing.TB, what string, v verdict) {
	t.Helper()
	if len(v.lost)+len(v.foreign)+len(v.disordered) > 0 {
		t.Errorf("%s: %v", what, v)
	}
}

func ids(events []outbox.Event) string {
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = e.ID
	}
	return strings.Join(names, " ")
}

// TestVerdictSeesEveryKindOfWrong judges the judge: a test that can't fail proves nothing.
func TestVerdictSeesEveryKindOfWrong(t *testing.T) {
	t.Parallel()
	ledger := []entry{{"a-1", "a", 1}, {"a-2", "a", 2}, {"a-3", "a", 3}, {"b-1", "b", 1}, {"free", "", 0}}
	for _, c := range []struct {
		published string
		want      verdict
	}{
		{"a-1 b-1 a-2 free a-3", verdict{published: 5}},
		{"a-1 a-2 b-1 free", verdict{published: 4, lost: []string{"a-3"}}},
		{"a-1 a-2 b-1 free a-2 a-3", verdict{published: 5, copied: []string{"a-2"}}},
		{"a-1 a-3 a-2 free b-1", verdict{published: 5, disordered: []string{"a-2"}}},
		{"a-2 a-3 a-1 a-2 b-1 free", verdict{published: 5, disordered: []string{"a-1"}, copied: []string{"a-2"}}},
		{"a-1 a-2 a-3 a-4 b-1 free", verdict{published: 6, foreign: []string{"a-4"}}},
	} {
		got := judge(ledger, strings.Fields(c.published))
		if got.String() != c.want.String() {
			t.Errorf("%s: %v, want %v", c.published, got, c.want)
		}
	}
}
