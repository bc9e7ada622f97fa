package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// program finds one of PostgreSQL's client programs: the newest of those that Debian keeps outside PATH, or that of PATH.
func program(t testing.TB, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is well formed
	if len(found) > 0 {
		return slices.Max(found)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("no program %s: run as root apt-get install -y postgresql-client", name)
	}
	return path
}

// dumpAndRestore copies a database as an administrator would.
func dumpAndRestore(t testing.TB, from, to string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	for _, command := range [][]string{
		{program(t, "pg_dump"), "--format=custom", "--file=" + file, from},
		{program(t, "pg_restore"), "--exit-on-error", "--dbname=" + to, file},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command[0], err, out)
		}
	}
}

// burn has a cluster give out so many transaction ids.
func burn(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	execute(t, pool, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`, n))
}

// refusing is a publisher that does not take events of some keys.
type refusing struct {
	*recorder

	refused map[string]error // by key
}

func (r refusing) Publish(ctx context.Context, events []outbox.Event) []error {
	results := make([]error, len(events))
	held := map[string]bool{}
	for i := range events {
		key := string(events[i].Key)
		switch err := r.refused[key]; {
		case held[key]:
			results[i] = outbox.ErrBehind
		case err != nil:
			results[i], held[key] = err, true
		default:
			results[i] = r.recorder.Publish(ctx, events[i:i+1])[0]
		}
	}
	return results
}

// TestRestoredLogPublishesWhatWasUnpublishedAndNothingElse dumps a log and loads it into another cluster, whose transaction ids are far behind those of
// the first, or far ahead. Its relays stood at different positions, one within a window, one with events set aside for all reasons.
func TestRestoredLogPublishesWhatWasUnpublishedAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ source, target int }{
		"cluster with smaller xids": {20_000, 0},
		"cluster with larger xids":  {0, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := stack.NewPostgres(t)
			target := stack.NewPostgres(t)
			r := newRestore(t, source.Database())
			burn(t, r.admin, c.source)
			r.work()

			url := target.Database()
			dumpAndRestore(t, r.url, url)
			admin := newPool(t, url)
			burn(t, admin, c.target)
			r.goOn(url, admin)
		})
	}
}

// restore is the story of a log in two clusters.
type restore struct {
	t     *testing.T
	url   string
	admin *pgxpool.Pool
	store *postgres.Store

	done, parking, behind, open, never *recorder // what each relay has published, in both clusters
	refused                            map[string]error
	skipped                            int64
}

func newRestore(t *testing.T, url string) *restore {
	t.Helper()
	admin := newDatabase(t, url)
	return &restore{
		t: t, url: url, admin: admin, store: postgres.New(admin),
		done: newRecorder(1), parking: newRecorder(2), behind: newRecorder(3), open: newRecorder(4), never: newRecorder(5),
	}
}

func (r *restore) config(name string) outbox.RelayConfig {
	config := outbox.RelayConfig{
		Name: name, Lanes: 4, Batch: 20, Lease: time.Second, Poll: 10 * time.Millisecond, Logger: newLogger(r.t),
		BackoffMin: 24 * time.Hour, BackoffMax: 24 * time.Hour,
	}
	switch name {
	case "parking":
		config.Policy = outbox.ParkKey
	case "some":
		config.Topics = []string{"orders*"}
	}
	return config
}

// work is what happens before the dump.
func (r *restore) work() {
	t := r.t
	t.Helper()
	random := newRandom(seed(t))
	w := newWriters(t, r.url)
	w.run(t.Context(), random, 6, 10)

	// Of the relay "never" there is nothing but the registration, and one event that it is to skip.
	if err := r.store.Register(t.Context(), outbox.Registration{Relay: "never", Lanes: 4, Policy: outbox.BlockLane, Retention: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	r.skipped = queryRow[int64](t, r.admin, `SELECT number FROM onceward.outbox ORDER BY number OFFSET 10 LIMIT 1`)
	if err := r.store.Skip(t.Context(), "never", r.skipped); err != nil {
		t.Fatal(err)
	}

	// "done" has published all there was, and so has "parking" but for what it has set aside.
	first := readLedger(t, r.admin)
	often := map[string]int{}
	for _, e := range first {
		often[e.key]++
	}
	delete(often, "")
	busiest := slices.SortedFunc(maps.Keys(often), func(a, b string) int { return often[b] - often[a] })
	r.refused = map[string]error{busiest[0]: outbox.ErrPermanent, busiest[1]: errors.New("not today")}
	due := outbox.Message{ID: "delayed", Topic: "orders", Payload: []byte("delayed"), DeliverAfter: time.Now().Add(24 * time.Hour)}
	tx, err := r.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.New(r.store).Publish(t.Context(), tx, due); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO ledger VALUES ('delayed', '', 0)`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay := startRelay(r.store, r.done, r.config("done"))
	r.done.journal.await(t, "the first events", first)
	relay.stop(t)
	relay = startRelay(r.store, refusing{r.parking, r.refused}, r.config("parking"))
	taken := slices.DeleteFunc(slices.Clone(first), func(e entry) bool { return r.refused[e.key] != nil })
	r.parking.journal.await(t, "the first events but for those of refused keys", taken)
	eventually(t, "what is set aside", func() bool { return len(r.asides(r.store)) > 3 })
	relay.stop(t)

	// "behind" stopped somewhere in the middle, "open" in a window: what it settled last is less than it has read.
	relay = startRelay(r.store, r.behind, r.config("behind"))
	eventually(t, "some events", func() bool { return r.behind.journal.distinct() > len(first)/3 })
	relay.stop(t)
	open := outbox.Registration{Relay: "open", Lanes: 4, Policy: outbox.BlockLane, Retention: 24 * time.Hour}
	if err := r.store.Register(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	lease, err := r.store.Lease(t.Context(), "open", "reader", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	reader := newReader(t, r.store, "reader", open, random, r.open.journal)
	position, lanes := lease.Lanes[0].Position, lease.Lanes
	for range 5 {
		chunk, err := r.store.Read(t.Context(), outbox.ReadRequest{
			Relay: "open", Lanes: []int{0, 1, 2, 3}, AllLanes: 4, Position: position, Limit: 9, MaxBytes: 1 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
		var progress []outbox.LaneProgress
		for _, lane := range lanes {
			lane.Position = chunk.End
			progress = append(progress, outbox.LaneProgress{OwnedLane: lane})
		}
		if err := reader.settle(t.Context(), progress); err != nil {
			t.Fatal(err)
		}
		for _, e := range chunk.Events {
			r.open.journal.write(e.ID)
		}
		position = chunk.End
	}
	if position.Target == "" {
		t.Fatal("the window is closed, so half of this proves nothing")
	}

	w.run(t.Context(), random, 6, 10)
	w.hold() // is open during the dump, and never ends
}

// asides of the relay "parking", each in a line.
func (r *restore) asides(store *postgres.Store) (lines []string) {
	r.t.Helper()
	all, err := store.SetAside(r.t.Context(), "parking", outbox.Filter{Limit: 1000, Brief: true})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s %s %d %s", a.Event.ID, a.Aside.State, a.Aside.Attempts, a.Aside.Error))
	}
	return lines
}

// goOn is what happens in the other cluster.
func (r *restore) goOn(url string, admin *pgxpool.Pool) {
	t := r.t
	t.Helper()
	store := postgres.New(admin)
	asides := r.asides(r.store)
	dumped := readLedger(t, admin)

	// A program without this library writes at once; the library refuses until the log is adopted.
	execute(t, admin, plainInsert, "early", "orders", nil, []byte("early"))
	execute(t, admin, `INSERT INTO ledger VALUES ('early', '', 0)`)
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.New(store).Publish(t.Context(), tx, outbox.Message{Topic: "orders"}); !errors.Is(err, outbox.ErrRestored) {
		t.Errorf("publish before the log is adopted: %v, want ErrRestored", err)
	} else {
		wantText(t, err.Error(), "Migrate")
	}
	_ = tx.Rollback(t.Context())

	if err := store.Migrate(t.Context()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	if got := r.asides(store); !slices.Equal(got, asides) {
		t.Errorf("set aside in the first cluster:\n%s\nand in the second:\n%s", strings.Join(asides, "\n"), strings.Join(got, "\n"))
	}
	w := newWriters(t, url)
	w.run(t.Context(), newRandom(seed(t)), 6, 10)
	ledger := readLedger(t, admin)
	if len(ledger) <= len(dumped) {
		t.Fatal("nothing was written after the restore")
	}

	// What is not due yet becomes due, what is dead is redriven, and now everything is taken.
	execute(t, admin, `UPDATE onceward.aside SET due_at = clock_timestamp() WHERE due_at IS NOT NULL`)
	execute(t, admin, `UPDATE onceward.outbox SET deliver_after = NULL WHERE deliver_after IS NOT NULL`)
	if n, err := store.Redrive(t.Context(), "parking", outbox.Filter{Limit: 1000}); err != nil || n == 0 {
		t.Errorf("redrive: %d, %v", n, err)
	}
	skipped := queryRow[string](t, admin, `SELECT message_id FROM onceward.outbox WHERE number = $1`, r.skipped)
	for name, published := range map[string]*recorder{"done": r.done, "parking": r.parking, "behind": r.behind, "open": r.open, "never": r.never} {
		want := ledger
		if name == "never" {
			want = slices.DeleteFunc(slices.Clone(ledger), func(e entry) bool { return e.id == skipped })
		}
		before := published.journal.distinct()
		relay := startRelay(store, published, r.config(name))
		published.journal.await(t, "what the relay "+name+" had not published", want)
		awaitPublished(t, store, name)
		relay.stop(t)
		v := judge(want, published.journal.published())
		wantNoCopies(t, name, v)
		t.Logf("%s: %d before the dump, %d after", name, before, v.published-before)
	}
}
