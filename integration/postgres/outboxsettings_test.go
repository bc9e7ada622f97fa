package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// changeSettings is what docs/outbox.md has operators do.
const changeSettings = `UPDATE onceward.relay SET topics = '{orders,audit.*}', policy = 'park_key', retention = '48 h' WHERE name = 'events'`

// changedSettings are those that it records, as a relay with them registers.
func changedSettings() outbox.Registration {
	r := registrationOf("events", "audit.*", "orders")
	r.Policy, r.Retention = outbox.ParkKey, 48*time.Hour
	return r
}

// TestSettingsAreChangedAsTheDocumentationSays: topics in any order.
func TestSettingsAreChangedAsTheDocumentationSays(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	if err := store.Register(t.Context(), registrationOf("events")); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, changeSettings)
	if got := len(follow(t, store, changedSettings(), "a").owned); got != 4 {
		t.Errorf("%d lanes are owned", got)
	}
}

// TestInstanceWithTheSettingsOfYesterdayIsRefused: one that was frozen while an operator
// changed them. It would pass events of topics that are new, and overtake parked keys.
func TestInstanceWithTheSettingsOfYesterdayIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct{ setting, statement string }{
		"lanes":       {"Lanes", ""},
		"topics":      {"Topics", `UPDATE onceward.relay SET topics = '{orders,audit.*}'`},
		"empty topic": {"Topics", `UPDATE onceward.relay SET topics = '{orders,""}'`},
		"NULL topic":  {"Topics", `UPDATE onceward.relay SET topics = '{orders,NULL}'`},
		"policy":      {"Policy", `UPDATE onceward.relay SET policy = 'park_key'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, admin := newDatabase(t)
			zombie, store := postgres.New(admin), postgres.New(admin)
			relay := registrationOf("events", "orders")
			follow(t, zombie, relay, "zombie")
			execute(t, admin, `UPDATE onceward.relay_instance SET lease_until = clock_timestamp()`)
			if change.statement != "" {
				execute(t, admin, change.statement)
			} else if err := store.ChangeLanes(t.Context(), "events", 8); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			_, err := zombie.Lease(ctx, "events", "zombie", time.Hour)
			wantIs(t, err, outbox.ErrSettings)
			refused := zombie.Register(t.Context(), relay)
			wantIs(t, refused, outbox.ErrSettings)
			for _, err := range []error{err, refused} {
				if err != nil && !strings.Contains(err.Error(), change.setting) {
					t.Errorf("%v does not name %s", err, change.setting)
				}
			}
		})
	}
}

// TestLeaseIsAskedForTwiceAtMost: NULL is no empty topic, although it reads as one. Whoever
// finds nothing wrong with a relay, and has no lease all the same, is to wait before it asks
// again.
func TestLeaseIsAskedForTwiceAtMost(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	follow(t, store, registrationOf("events", ""), "a")
	execute(t, admin, `UPDATE onceward.relay SET topics = '{NULL}'`)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err := store.Lease(ctx, "events", "a", time.Hour)
	wantIs(t, err, idempotency.ErrUnavailable)
	if ctx.Err() != nil {
		t.Errorf("it asked for %v", soon)
	}
}

// foreignOperators is one for each pair of numeric types that the server has none for: it
// casts then, and an exact match is preferred to that.
const foreignOperators = `
DO $do$
DECLARE l text; r text; o text;
	types text[] := ARRAY['smallint', 'integer', 'bigint', 'numeric', 'double precision'];
BEGIN
	FOREACH l IN ARRAY types LOOP FOREACH r IN ARRAY types LOOP
		EXECUTE format('CREATE FUNCTION public.foreign_operator(%1$s, %2$s) RETURNS %1$s IMMUTABLE LANGUAGE plpgsql
			AS $$ BEGIN RAISE EXCEPTION ''operator of the database for %1$s and %2$s''; END $$', l, r);
		FOREACH o IN ARRAY ARRAY['+', '-', '*', '/', '%', '&'] LOOP
			IF NOT EXISTS (SELECT FROM pg_operator WHERE oprname = o AND oprleft = l::regtype AND oprright = r::regtype) THEN
				EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.foreign_operator)', o, l, r);
			END IF;
		END LOOP;
	END LOOP; END LOOP;
END $do$`

// TestOutboxWorksAmongForeignOperators, which are there before the log is.
func TestOutboxWorksAmongForeignOperators(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	execute(t, admin, foreignOperators)
	store := postgres.New(admin, postgres.WithSchema("among_operators"))
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, `INSERT INTO among_operators.outbox (topic, key) VALUES ('orders', 'a')`)
	publish(t, admin, store, eventsOf("orders", "a", 5)...)()
	a := follow(t, store, registrationOf("events"), "a")
	a.limit = 1
	first := a.read().Events[0]
	a.save(outbox.Aside{Number: first.Number, Lane: first.Lane, State: outbox.Dead})
	for doing, do := range map[string]func() error{
		"status": func() error { _, err := store.Relays(t.Context(), 10); return err },
		"skip":   func() error { return store.Skip(t.Context(), "events", first.Number) },
		"replay": func() error { return store.Replay(t.Context(), "events", 1) },
		"prune":  func() error { _, err := store.PruneLog(t.Context(), 0, 10, time.Hour); return err },
		"since":  func() error { _, err := store.FirstSince(t.Context(), time.Now()); return err },
		"lanes": func() error {
			if err := store.Leave(t.Context(), "events", "a"); err != nil {
				return err
			}
			return store.ChangeLanes(t.Context(), "events", 8)
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", doing, err)
		}
	}
}

// TestQuotedIdentifiersAreNoDamageOfTheLog: the setting changes how the server prints defaults.
func TestQuotedIdentifiersAreNoDamageOfTheLog(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["quote_all_identifiers"] = "on" }))
	if err := store.Register(t.Context(), registrationOf("events")); err != nil {
		t.Error(err)
	}
}
