package postgres_test

import (
	"testing"
	"time"

	"github.com/onceward/onceward/store/postgres"
)

// TestStandstillCountsOnceForRelaysThatStartAtOnce: all instances come back together when the
// database does. A relay that was given up before would else be waited for anew, and the log
// grow for as long.
func TestStandstillCountsOnceForRelaysThatStartAtOnce(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url))
	starting := []string{"a", "b"}
	for _, relay := range append(starting, "retired") {
		if err := store.Register(t.Context(), registrationOf(relay)); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, admin, `UPDATE onceward.relay SET seen_at = clock_timestamp() - interval '6 days'`)
	execute(t, admin, `UPDATE onceward.relay SET seen_at = seen_at - interval '2 days' WHERE name = 'retired'`)

	// Both have read before either writes.
	operator, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Exec(t.Context(), `SELECT FROM onceward.relay ORDER BY name FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, len(starting))
	for _, relay := range starting {
		go func() { started <- store.Register(t.Context(), registrationOf(relay)) }()
	}
	eventually(t, "the wait of both", func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`) == len(starting)
	})
	if err := operator.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range starting {
		if err := within(t, "a registration", started); err != nil {
			t.Fatal(err)
		}
	}

	seen := func(relay string) time.Duration {
		return time.Duration(queryRow[float64](t, admin, `SELECT date_part('epoch', clock_timestamp() - seen_at)
			FROM onceward.relay WHERE name = $1`, relay) * float64(time.Second))
	}
	for relay, want := range map[string]time.Duration{"a": 0, "b": 0, "retired": 48 * time.Hour} {
		if got := seen(relay); got < want-time.Hour || got > want+time.Hour {
			t.Errorf("relay %q was seen %v ago, want about %v", relay, got, want)
		}
	}
}
