package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestRestoredLogPublishesWhatWasUnpublishedAndNothingElse moves a log from cluster to
// cluster, and back to one that its numbers are from.
func TestRestoredLogPublishesWhatWasUnpublishedAndNothingElse(t *testing.T) {
	t.Parallel()
	first, second := stack.NewPostgres(t), stack.NewPostgres(t)
	for name, restore := range restoreWays(t, first.URL()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := first.Database()
			pool := newPool(t, source)
			store := postgres.New(pool)
			if err := store.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := leaveUnpublished(t, pool, store, "1")
			restored := second.Database()
			restore(t, source, restored)
			want = adoptAndFollow(t, restored, want)

			again := first.Database()
			restore(t, restored, again)
			adoptAndFollow(t, again, want)
		})
	}
}

// TestRestoredLogOfTenRelaysPublishesToAllWhatOneHasYetTo: for each subset of nine there is a number that tells it.
func TestRestoredLogOfTenRelaysPublishesToAllWhatOneHasYetTo(t *testing.T) {
	t.Parallel()
	first, second := stack.NewPostgres(t), stack.NewPostgres(t)
	pool := newPool(t, first.Database())
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	relays := []outbox.Registration{registrationOf("of mail", "mail")}
	for n := range 9 {
		relays = append(relays, registrationOf(fmt.Sprintf("relay-%d", n)))
	}
	everywhere, late := eventsOf("orders", "everywhere", 5), eventsOf("orders", "late", 5)
	publish(t, pool, store, everywhere...)()
	behind := follow(t, store, relays[1], "a")
	behind.all()
	publish(t, pool, store, late...)()
	for _, relay := range slices.Concat(relays[:1], relays[2:]) {
		follow(t, store, relay, "a").all()
	}
	restored := second.Database()
	copyLog(t, pool.Config().ConnString(), restored)
	store = postgres.New(newPool(t, restored))
	for n, relay := range relays {
		want := idsOf(late)
		if n == 0 {
			want = nil
		}
		wantSame(t, relay.Relay, follow(t, store, relay, "b").all(), want)
	}
}

// TestProcessThatSurvivesTheRestoreIsRefusedToo: its database is lost, restored in another cluster and
// found under the old address. What it wrote there under a savepoint would look like an event of the old
// cluster, published long ago.
func TestProcessThatSurvivesTheRestoreIsRefusedToo(t *testing.T) {
	t.Parallel()
	first, second := stack.NewPostgres(t), stack.NewPostgres(t)
	var address atomic.Pointer[string]
	lost, restored := first.Database(), second.Database()
	address.Store(&lost)
	pool := newPool(t, lost, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error {
			now, err := pgx.ParseConfig(*address.Load())
			config.Host, config.Port, config.Database = now.Host, now.Port, now.Database
			return err
		}
	})
	store := postgres.New(pool)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, pool, store, eventsOf("orders", "before", 1)...)()
	publish(t, pool, store, eventsOf("orders", "before", 1)...)()
	copyLog(t, lost, restored)
	address.Store(&restored)
	pool.Reset()

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, n := range []int{1, 2} {
		wantIs(t, store.Append(t.Context(), tx, eventsOf("orders", "refused", n)), outbox.ErrRestored)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2} {
		if err := store.Append(t.Context(), tx, eventsOf("orders", "after", n)); err != nil {
			t.Error(err)
		}
	}
}

// TestEventsAreWrittenWhereTheClusterWasNotedUnderASavepoint, as schema.sql may be loaded.
func TestEventsAreWrittenWhereTheClusterWasNotedUnderASavepoint(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	execute(t, admin, `UPDATE onceward.outbox_cluster SET xid = '3'`)
	store := postgres.New(admin)
	for range 2 {
		publish(t, admin, store, eventsOf("orders", "a", 1)...)()
	}
	if n := queryRow[int](t, admin, `SELECT count(*) FROM onceward.outbox`); n != 2 {
		t.Errorf("%d events were written, want 2", n)
	}
}

// unpublished are IDs by relay.
type unpublished map[string][]string

// leaveUnpublished leaves events that all, one, or none of two relays have published,
// of transactions that ended in another order than they began, with windows half read.
func leaveUnpublished(t *testing.T, pool *pgxpool.Pool, store *postgres.Store, prefix string) unpublished {
	t.Helper()
	all, orders := follow(t, store, registrationOf("all"), "a"), follow(t, store, registrationOf("orders", "ord*"), "o")
	publish(t, pool, store, eventsOf("orders", prefix+"-published", 30)...)()
	publish(t, pool, store, eventsOf("mail", prefix+"-published-mail", 30)...)()
	lateOrders := eventsOf("orders", prefix+"-late", 10)
	late := publish(t, pool, store, lateOrders...)
	lateRead := publish(t, pool, store, eventsOf("orders", prefix+"-late-read", 10)...)
	publish(t, pool, store, eventsOf("orders", prefix+"-more", 10)...)()
	all.all()
	orders.all()
	lateRead()
	all.all()
	orders.all()
	onlyAll := eventsOf("orders", prefix+"-only-all", 20)
	publish(t, pool, store, onlyAll...)()
	all.all()
	late()
	news, mails := eventsOf("orders", prefix+"-new", 20), eventsOf("mail", prefix+"-new-mail", 20)
	publish(t, pool, store, append(news, mails...)...)()
	// The window is left half read in one group of lanes; the first event of it is dead.
	all.limit = 5
	chunk := all.read()
	e := chunk.Events[0]
	all.save(outbox.Aside{Number: e.Number, Lane: e.Lane, State: outbox.Dead, Error: "refused"})
	want := unpublished{
		"all":    slices.Concat(idsOf(lateOrders), idsOf(news), idsOf(mails)),
		"orders": slices.Concat(idsOf(lateOrders), idsOf(onlyAll), idsOf(news)),
	}
	want["all"] = slices.DeleteFunc(want["all"], func(id string) bool {
		return slices.ContainsFunc(chunk.Events, func(e outbox.Event) bool { return e.ID == id })
	})
	if len(want["all"]) != 45 {
		t.Fatalf("%d are unpublished: the test is not what it means to be", len(want["all"]))
	}
	return want
}

// adoptAndFollow finds what is wanted, by two relays at once, and leaves more.
func adoptAndFollow(t *testing.T, url string, want unpublished) unpublished {
	t.Helper()
	pool := newPool(t, url)
	store := postgres.New(pool)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantIs(t, store.Append(t.Context(), tx, eventsOf("orders", "refused", 1)), outbox.ErrRestored)
	_ = tx.Rollback(t.Context())
	wantIs(t, store.Skip(t.Context(), "all", 1), outbox.ErrRestored)
	// A program in another language asks nobody.
	execute(t, pool, `INSERT INTO onceward.outbox (message_id, topic) SELECT 'native-' || n, 'orders' FROM generate_series(1, 5) n`)
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Rollback(context.Background()) })
	if _, err := open.Exec(t.Context(), `INSERT INTO onceward.outbox (message_id, topic) VALUES ('native-open', 'orders')`); err != nil {
		t.Fatal(err)
	}

	all := follow(t, store, registrationOf("all"), "a")
	orders := follow(t, postgres.New(newPool(t, url)), registrationOf("orders", "ord*"), "o")
	execute(t, pool, `INSERT INTO onceward.outbox (message_id, topic) VALUES ('native-later', 'orders')`)
	native := []string{"native-1", "native-2", "native-3", "native-4", "native-5", "native-later"}
	wantSame(t, "all", all.all(), append(want["all"], native...))
	wantSame(t, "orders", orders.all(), append(want["orders"], native...))
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*follower{all, orders} {
		wantSame(t, f.relay.Relay+", later", f.all(), []string{"native-open"})
		wantSame(t, f.relay.Relay+", at last", f.all(), nil)
	}
	dead, err := store.SetAside(t.Context(), "all", outbox.Filter{Limit: 100})
	if err != nil || len(dead) == 0 || dead[0].Aside.State != outbox.Dead || dead[0].Event.ID == "" {
		t.Errorf("set aside are %+v, error %v", dead, err)
	}
	execute(t, pool, `DELETE FROM onceward.outbox WHERE message_id LIKE 'native%'`)
	execute(t, pool, `UPDATE onceward.relay_instance SET lease_until = clock_timestamp() - interval '1 second'`)
	return leaveUnpublished(t, pool, store, "2")
}

// restoreWays are the ways of pg_dump, and one for servers that are newer than it is, which
// it refuses.
func restoreWays(t *testing.T, server string) map[string]func(t *testing.T, from, to string) {
	t.Helper()
	ways := map[string]func(t *testing.T, from, to string){"copy": copyLog}
	major := queryRow[int](t, newPool(t, server), `SELECT current_setting('server_version_num')::int / 10000`)
	dumps := 0
	if _, err := fmt.Sscanf(run(t, "pg_dump", "--version"), "pg_dump (PostgreSQL) %d", &dumps); err != nil {
		t.Fatal(err)
	}
	if dumps < major {
		t.Logf("pg_dump is of version %d: a server of version %d is copied without", dumps, major)
		return ways
	}
	for name, flags := range map[string]struct{ dump, restore []string }{
		"pg_restore":                    {},
		"pg_restore in one transaction": {restore: []string{"--single-transaction"}},
		"inserts":                       {dump: []string{"--inserts"}},
	} {
		ways[name] = func(t *testing.T, from, to string) {
			t.Helper()
			file := filepath.Join(t.TempDir(), "dump")
			run(t, "pg_dump", append(flags.dump, "--format=custom", "--no-owner", "--schema=onceward", "--file="+file, from)...)
			run(t, "pg_restore", append(flags.restore, "--exit-on-error", "--no-owner", "--dbname="+to, file)...)
		}
	}
	return ways
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err == nil && len(found) > 0 {
		program = found[len(found)-1]
	}
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s: apt-get install postgresql-client", program, err, out)
	}
	return string(out)
}

// copyLog migrates and copies all tables, as logical replication would.
func copyLog(t *testing.T, from, to string) {
	t.Helper()
	source, target := newPool(t, from), newPool(t, to)
	if err := postgres.New(target).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, target, `DELETE FROM onceward.outbox_cluster`)
	for table, columns := range map[string]string{
		"outbox": "number, xid, created_at, deliver_after, message_id, topic, key, payload, headers", "outbox_cluster": "system_identifier, xid",
		"relay": "name, lanes, topics, policy, retention, created_at, seen_at", "relay_instance": "relay, instance, seen_at, lease_until",
		"relay_lane": "relay, lane, epoch, owner, seen, floor, target, target_floor, last, replay, xid",
		"aside":      "relay, number, lane, state, key_hash, due_at, attempts, error, set_aside_at",
	} {
		var rows bytes.Buffer
		copyRows(t, source, `COPY onceward.`+table+` (`+columns+`) TO STDOUT`, nil, &rows)
		copyRows(t, target, `COPY onceward.`+table+` (`+columns+`) FROM STDIN`, &rows, nil)
	}
	last := queryRow[int64](t, source, `SELECT last_value FROM onceward.outbox_number`)
	execute(t, target, fmt.Sprintf(`SELECT setval('onceward.outbox_number', %d)`, last))
}

func copyRows(t *testing.T, pool *pgxpool.Pool, statement string, in io.Reader, out io.Writer) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if out != nil {
		_, err = conn.Conn().PgConn().CopyTo(t.Context(), out, statement)
	} else {
		_, err = conn.Conn().PgConn().CopyFrom(t.Context(), in, statement)
	}
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// TestCopyOfTheFilesIsAdoptedAsItIs: pg_upgrade keeps the numbers of transactions and makes
// another cluster of them.
func TestCopyOfTheFilesIsAdoptedAsItIs(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	want := leaveUnpublished(t, admin, store, "1")
	execute(t, admin, `DELETE FROM onceward.outbox_cluster; INSERT INTO onceward.outbox_cluster (system_identifier) VALUES (1)`)
	other := postgres.New(admin)
	xids := `SELECT string_agg(xid::text, ',' ORDER BY number) FROM onceward.outbox`
	before := queryRow[string](t, admin, xids)
	if err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := queryRow[string](t, admin, xids); after != before {
		t.Error("the rows were given other numbers")
	}
	wantSame(t, "all", follow(t, other, registrationOf("all"), "a").all(), want["all"])
	wantSame(t, "orders", follow(t, other, registrationOf("orders", "ord*"), "o").all(), want["orders"])
}
