package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestLogThatCannotBeReadInOrderIsRefusedWithItsCure carries out the cure that the error
// names, and registers again.
func TestLogThatCannotBeReadInOrderIsRefusedWithItsCure(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"sequence that caches": `ALTER SEQUENCE {schema}.outbox_number CACHE 10`,
		"sequence with gaps":   `ALTER SEQUENCE {schema}.outbox_number INCREMENT 10`,
		"sequence that cycles": `ALTER SEQUENCE {schema}.outbox_number CYCLE`,
		"number first":         `ALTER TABLE {schema}.outbox ALTER number SET DEFAULT nextval('{literal}.outbox_number')`,
		"other sequence": `CREATE SEQUENCE {schema}.own; ALTER TABLE {schema}.outbox ALTER number SET DEFAULT
			CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{literal}.own') END`,
		"no number":                    `ALTER TABLE {schema}.outbox ALTER number DROP DEFAULT`,
		"no transaction":               `ALTER TABLE {schema}.outbox ALTER xid DROP DEFAULT`,
		"sequence that was set back":   `SELECT setval('{literal}.outbox_number', 1)`,
		"sequence that was made again": `ALTER SEQUENCE {schema}.outbox_number RESTART`,
	} {
		for _, schema := range []string{postgres.DefaultSchema, nasty} {
			t.Run(name+"/"+schema, func(t *testing.T) {
				t.Parallel()
				_, admin := newDatabase(t)
				store := postgres.New(admin, postgres.WithSchema(schema))
				if err := store.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				publish(t, admin, store, eventsOf("orders", "a", 3)...)()
				relay := registrationOf("events")
				if err := store.Register(t.Context(), relay); err != nil {
					t.Fatal(err)
				}
				quoted := pgx.Identifier{schema}.Sanitize()
				execute(t, admin, strings.NewReplacer("{schema}", quoted, "{literal}", strings.ReplaceAll(quoted, "'", "''")).Replace(damage))
				err := store.Register(t.Context(), relay)
				wantIs(t, err, outbox.ErrLog)
				if errors.Is(err, idempotency.ErrUnavailable) {
					t.Errorf("%v: it passes for an outage", err)
				}
				for _, start := range []string{"ALTER ", "SELECT "} {
					if at := strings.Index(err.Error(), ": "+start); at >= 0 {
						execute(t, admin, err.Error()[at+2:])
					}
				}
				if err := store.Register(t.Context(), relay); err != nil {
					t.Errorf("after the cure: %v", err)
				}
			})
		}
	}
}

// The grants of the package documentation, which the test compares.
const (
	producerRights = `
GRANT USAGE ON SCHEMA onceward TO producer;
GRANT INSERT (message_id, topic, key, payload, headers, deliver_after) ON onceward.outbox TO producer;
GRANT USAGE ON SEQUENCE onceward.outbox_number TO producer;
GRANT SELECT ON onceward.migration, onceward.outbox_cluster TO producer;`
	relayRights = `
GRANT USAGE ON SCHEMA onceward TO relay;
GRANT SELECT ON onceward.migration, onceward.outbox_number TO relay;
GRANT SELECT, DELETE, UPDATE (xid) ON onceward.outbox TO relay;
GRANT SELECT, INSERT, DELETE ON onceward.outbox_cluster TO relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.relay, onceward.relay_instance, onceward.relay_lane, onceward.aside TO relay;`
)

// as is a pool of a new role with these grants.
func as(t *testing.T, url string, admin *pgxpool.Pool, name, grants string) (pool *pgxpool.Pool, role string) {
	t.Helper()
	documentation, err := os.ReadFile("../../store/postgres/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(strings.TrimSpace(grants), " "+name+";", " billing_"+name+";")) {
		if !bytes.Contains(documentation, []byte("//\t"+strings.TrimSpace(line)+"\n")) {
			t.Errorf("the package documentation does not have: %s", line)
		}
	}
	role = fmt.Sprintf("%s_%d", name, os.Getpid())
	execute(t, admin, `CREATE ROLE `+role)
	t.Cleanup(func() { execute(t, admin, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	execute(t, admin, strings.ReplaceAll(grants, " "+name+";", " "+role+";"))
	return newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role }), role
}

func TestProducersAndRelaysNeedNoMoreThanTheirRights(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	producers, producer := as(t, url, admin, "producer", producerRights)
	relays, relay := as(t, url, admin, "relay", relayRights)
	producing, relaying := postgres.New(producers), postgres.New(relays)
	for _, store := range []*postgres.Store{producing, relaying} {
		if err := store.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, producers, producing, eventsOf("orders", "a", 3)...)()
	publish(t, producers, producing, eventsOf("orders", "b", 1)...)()
	execute(t, producers, `INSERT INTO onceward.outbox (topic, key, payload, headers)
		VALUES ('orders', 'order-7', '{"paid":true}', '[["content-type","application/json"]]')`)
	for column, value := range map[string]string{"number": "1000", "xid": "'3'", "created_at": "now()"} {
		if _, err := producers.Exec(t.Context(), `INSERT INTO onceward.outbox (topic, `+column+`) VALUES ('orders', `+value+`)`); err == nil {
			t.Errorf("a producer chooses %s", column)
		}
	}
	if err := everythingOfRelays(t, relaying); err != nil {
		t.Error(err)
	}
	// The restore of a log is a relay's to adopt.
	execute(t, admin, `DELETE FROM onceward.outbox_cluster; INSERT INTO onceward.outbox_cluster (system_identifier, xid) VALUES (1, '3')`)
	if err := relaying.Register(t.Context(), registrationOf("events")); err != nil {
		t.Error(err)
	}
	execute(t, admin, `REVOKE UPDATE ON onceward.relay_lane FROM `+relay)
	wantMissingRight(t, relaying.Register(t.Context(), registrationOf("events")), "UPDATE on relay_lane", "Rights")
	wantMissingRight(t, relaying.Check(t.Context()), "UPDATE on relay_lane")
	execute(t, admin, `REVOKE USAGE ON SEQUENCE onceward.outbox_number FROM `+producer)
	wantMissingRight(t, producing.Check(t.Context()), "USAGE on outbox_number")
	tx, err := producers.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantMissingRight(t, producing.Append(t.Context(), tx, eventsOf("orders", "c", 1)), "sequence outbox_number", "Rights")
	_ = tx.Rollback(t.Context())
}

// everythingOfRelays calls each method of a relay's store where it does something. The
// log has events.
func everythingOfRelays(t *testing.T, store outbox.RelayStore) error {
	t.Helper()
	ctx := t.Context()
	f := follow(t, store, outbox.Registration{
		Relay: "everything", Lanes: 4, Topics: []string{"ord*", "mail"}, Policy: outbox.ParkKey, Retention: time.Hour,
	}, "a")
	f.limit = 1000
	f.all()
	if err := store.Replay(ctx, "everything", 1); err != nil {
		return err
	}
	f.take()
	f.limit = 2
	events := f.read().Events
	if len(events) != 2 {
		return fmt.Errorf("%d events", len(events))
	}
	first, second := events[0], events[1]
	f.save(
		outbox.Aside{Number: first.Number, Lane: first.Lane, State: outbox.Dead, KeyHash: "k", Error: "refused"},
		outbox.Aside{Number: second.Number, Lane: second.Lane, State: outbox.Retrying},
	)
	if held, err := store.Held(ctx, "everything", []int{0, 1, 2, 3}); err != nil || len(held) != 2 {
		return fmt.Errorf("held %v, error %w", held, err)
	}
	if due, err := store.Due(ctx, "everything", []int{0, 1, 2, 3}, 10, 1<<20); err != nil || len(due.Events) != 1 {
		return fmt.Errorf("due %v, error %w", due, err)
	}
	f.save()
	for i, step := range []func() error{
		func() error { _, err := store.Relays(ctx, 100); return err },
		func() error { _, err := store.Holders(ctx); return err },
		func() error { _, err := store.FirstSince(ctx, time.Now()); return err },
		func() error { _, err := store.SetAside(ctx, "everything", outbox.Filter{Limit: 10}); return err },
		func() error { _, err := store.Redrive(ctx, "everything", outbox.Filter{Limit: 10}); return err },
		func() error { return store.Skip(ctx, "everything", first.Number) },
		func() error { _, err := store.Discard(ctx, "everything", outbox.Filter{Limit: 10}); return err },
		func() error { _, err := store.PruneLog(ctx, 0, 10, time.Hour); return err },
		func() error { return store.Leave(ctx, "everything", "a") },
		func() error { return store.ChangeLanes(ctx, "everything", 2) },
		func() error { return store.Remove(ctx, "everything") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// TestEventsAreReadWhateverTheFormOfTheirBytesIs, in every mode: see TestBytesAreReadWhateverTheirFormIs.
func TestEventsAreReadWhateverTheFormOfTheirBytesIs(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	events := eventsOf("orders", "key", 3)
	events[0].Key, events[0].Payload = []byte{0xff}, []byte{0, 0xff, '\\'}
	events[1].Payload = bytes.Repeat([]byte{0xff, '\\'}, 1<<14) // does not come along
	publish(t, admin, postgres.New(admin), events...)()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		url := withSetting(withSetting(url, "bytea_output=escape"), "default_query_exec_mode="+mode)
		for name, store := range map[string]outbox.RelayStore{
			"pgx": postgres.New(newPool(t, url)), "sql": postgres.NewSQL(newSQLPool(t, url)),
		} {
			read := follow(t, store, registrationOf(mode+name), "a").read().Events
			if len(read) != len(events) {
				t.Fatalf("%s, %s: %d events", mode, name, len(read))
			}
			for i, e := range read {
				if !bytes.Equal(e.Key, events[i].Key) || !bytes.Equal(e.Payload, events[i].Payload) {
					t.Errorf("%s, %s: event %d is another one", mode, name, i)
				}
			}
			if err := everythingOfRelays(t, store); err != nil {
				t.Errorf("%s, %s: %v", mode, name, err)
			}
		}
	}
}

// TestWhateverAProgramWritesIsReadOrRefused: nothing that plain SQL can write stops a relay.
func TestWhateverAProgramWritesIsReadOrRefused(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	for name, row := range map[string]string{
		"empty topic":      `(topic) VALUES ('')`,
		"no topic":         `(payload) VALUES ('')`,
		"infinitely late":  `(topic, deliver_after) VALUES ('a', 'infinity')`,
		"infinitely early": `(topic, deliver_after) VALUES ('a', '-infinity')`,
		"beyond the years": `(topic, deliver_after) VALUES ('a', '10000-01-01')`,
		"never written":    `(topic, created_at) VALUES ('a', 'infinity')`,
		"always there":     `(topic, created_at) VALUES ('a', '-infinity')`,
		"written too late": `(topic, created_at) VALUES ('a', '294276-01-01')`,
		"no identity":      `(topic, message_id) VALUES ('a', NULL)`,
		"not JSON":         `(topic, headers) VALUES ('a', '{')`,
	} {
		if _, err := admin.Exec(t.Context(), `INSERT INTO onceward.outbox `+row); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	valid := []string{
		`(topic) VALUES ('a')`,
		`(topic, key, payload, headers) VALUES ('a', '', '', '[]')`,
		`(topic, headers) VALUES ('a', '[["n", null], ["n", "v"], ["b", {"base64": "/w=="}]]')`,
		`(topic, headers) VALUES ('a', 'null')`,
		`(topic, deliver_after) VALUES ('a', '9999-12-31 23:59:59.999999')`,
		`(topic, deliver_after) VALUES ('a', '4713-01-01 BC')`,
		`(topic, created_at) VALUES ('a', '4713-01-01 BC')`,
		`(topic, created_at) VALUES ('a', '9999-12-31 23:59:59.999999+00')`,
		`(topic, key) VALUES ('a', decode(repeat('00ff', 1000000), 'hex'))`,
		`(topic, message_id) VALUES ('a', 'an identity of its own')`,
		`(topic, message_id) VALUES (repeat('t', 512), repeat('i', 512))`,
	}
	invalid := map[string]string{
		`(topic, headers) VALUES ('a', '{"n": "v"}')`:                                   "headers",
		`(topic, headers) VALUES ('a', '[["n"]]')`:                                      "headers",
		`(topic, headers) VALUES ('a', '[["n", 7]]')`:                                   "headers",
		`(topic, headers) VALUES ('a', '[["", "v"]]')`:                                  "header 0",
		`(topic, headers) VALUES ('a', '7')`:                                            "headers",
		`(topic, headers) VALUES ('a', (repeat('[', 1000) || repeat(']', 1000))::json)`: "headers",
		`(topic, headers) VALUES ('a', '[["onceward-id", "x"]]')`:                       "onceward-id",
		`(topic, message_id) VALUES ('a', '')`:                                          "ID",
		`(topic, message_id) VALUES ('a', repeat('i', 10000000))`:                       "ID",
		`(topic) VALUES (repeat('t', 513))`:                                             "topic",
		`(topic) VALUES (repeat('t', 10000000))`:                                        "topic",
		`(topic, payload) VALUES ('a', convert_to(repeat('p', 67108865), 'UTF8'))`:      "67108865",
		`(topic, key) VALUES ('a', convert_to(repeat('k', 67108865), 'UTF8'))`:          "67108865",
		// Packed it is small.
		`(topic, headers) VALUES ('a', ('[["n", "' || repeat('v', 67108864) || '"]]')::json)`: "67108875",
		// Each is small enough.
		`(topic, key, payload) VALUES ('a', convert_to(repeat('k', 33554433), 'UTF8'), convert_to(repeat('p', 33554432), 'UTF8'))`: "67108865",
	}
	want := map[int64]string{}
	add := func(row, says string) {
		want[queryRow[int64](t, admin, `INSERT INTO onceward.outbox `+row+` RETURNING number`)] = says
	}
	for _, row := range valid {
		add(row, "")
	}
	for row, says := range invalid {
		add(row, says)
	}
	f := follow(t, postgres.New(admin), registrationOf("events"), "a")
	read := 0
	for {
		chunk := f.read()
		for _, e := range chunk.Events {
			read++
			says := want[e.Number]
			if (e.Invalid == nil) != (says == "") || e.Invalid != nil && !strings.Contains(e.Invalid.Error(), says) {
				t.Errorf("event %d: %v, want it to say %q", e.Number, e.Invalid, says)
			}
		}
		if !chunk.More && len(f.together()) == 4 {
			break
		}
	}
	if read != len(want) {
		t.Errorf("%d events were read, of %d", read, len(want))
	}
}

func TestGeneratedIDIsAUUIDOfVersion7(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	execute(t, admin, `INSERT INTO onceward.outbox (topic) SELECT 'a' FROM generate_series(1, 1000)`)
	const wrong = `SELECT count(*) FROM onceward.outbox WHERE message_id !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
		OR abs(('x' || left(replace(message_id, '-', ''), 12))::bit(48)::bigint - extract(epoch FROM created_at) * 1000) > 60000`
	if got := queryRow[int](t, admin, wrong); got != 0 {
		t.Errorf("%d IDs are none, such as %s", got, queryRow[string](t, admin, `SELECT message_id FROM onceward.outbox LIMIT 1`))
	}
	if got := queryRow[int](t, admin, `SELECT count(DISTINCT message_id) FROM onceward.outbox`); got != 1000 {
		t.Errorf("%d IDs of 1000 events", got)
	}
}

// TestLaneOfAKeyIsTheSameInEveryVersion: positions outlive an upgrade of the server.
func TestLaneOfAKeyIsTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	const slots = `INSERT INTO onceward.outbox (topic, key) VALUES ('a', ''), ('a', 'order-7'), ('a', '\x00ff') RETURNING slot`
	rows, _ := admin.Query(t.Context(), slots)
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || fmt.Sprint(got) != "[621 442 121]" {
		t.Errorf("slots %v, error %v", got, err)
	}
}
