package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

// nasty is a schema name that nothing but correct quoting survives.
const nasty = `Once"Ward's; DROP schema -- {schema} $1 é`

func TestMigrationsAndSchemaFileMakeTheSameCatalog(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{postgres.DefaultSchema, nasty} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			migrated, written := newPool(t, stack.Postgres(t)), newPool(t, stack.Postgres(t))
			if err := postgres.New(migrated, postgres.WithSchema(schema)).Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			// As the file's head says: another name in place of this one.
			quoted := pgx.Identifier{schema}.Sanitize()
			text := strings.ReplaceAll(string(file), "CREATE SCHEMA onceward;", "CREATE SCHEMA "+quoted+";")
			text = strings.ReplaceAll(text, "'onceward.", "'"+strings.ReplaceAll(quoted, "'", "''")+".")
			execute(t, written, strings.ReplaceAll(text, "onceward.", quoted+"."))

			got, want := catalog(t, migrated, schema), catalog(t, written, schema)
			if len(got) < 40 {
				t.Fatalf("the catalog has %d lines: it does not see everything", len(got))
			}
			for _, line := range got {
				if !slices.Contains(want, line) {
					t.Errorf("only by Migrate: %s", line)
				}
			}
			for _, line := range want {
				if !slices.Contains(got, line) {
					t.Errorf("only in schema.sql: %s", line)
				}
			}

			// A program finds nothing left to do in either.
			for _, pool := range []*pgxpool.Pool{migrated, written} {
				store := postgres.New(pool, postgres.WithSchema(schema))
				if err := errors.Join(store.Migrate(t.Context()), store.Check(t.Context())); err != nil {
					t.Error(err)
				}
			}
			if got := len(catalog(t, written, schema)); got != len(want) {
				t.Errorf("Migrate after schema.sql changed the catalog from %d lines to %d", len(want), got)
			}
		})
	}
}

// catalog describes everything in a schema, a line each, sorted.
func catalog(t *testing.T, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	const all = `
WITH relation AS (SELECT c.oid, c.relname, c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1)
SELECT format('relation %s kind %s persistence %s: %s', relname, relkind, relpersistence, obj_description(oid, 'pg_class')) FROM relation
UNION ALL
SELECT format('column %s.%s at %s: %s %s collate %s default %s identity %s: %s', r.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod),
	CASE WHEN a.attnotnull THEN 'not null' END, (SELECT collname FROM pg_collation WHERE oid = a.attcollation),
	(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = r.oid AND adnum = a.attnum), a.attidentity, col_description(r.oid, a.attnum))
FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT format('constraint %s.%s: %s', r.relname, con.conname, pg_get_constraintdef(con.oid)) FROM relation r JOIN pg_constraint con ON con.conrelid = r.oid
UNION ALL
SELECT format('index %s', pg_get_indexdef(oid)) FROM relation WHERE relkind = 'i'
UNION ALL
SELECT format('routine %s %s', p.proname, pg_get_functiondef(p.oid)) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
UNION ALL
SELECT format('trigger %s', pg_get_triggerdef(tg.oid)) FROM pg_trigger tg JOIN relation r ON r.oid = tg.tgrelid WHERE NOT tgisinternal
UNION ALL
SELECT format('migration %s %s', v, name) FROM (SELECT version, name FROM {schema}.migration) AS m (v, name)
ORDER BY 1`
	statement := strings.Replace(all, "{schema}", pgx.Identifier{schema}.Sanitize(), 1)
	rows, _ := pool.Query(t.Context(), statement, schema)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestMigrateFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	stores := make([]*postgres.Store, 8)
	for i := range stores {
		stores[i] = postgres.New(newPool(t, url))
	}
	errs := make([]error, len(stores))
	var all sync.WaitGroup
	start := make(chan struct{})
	for i, store := range stores {
		all.Go(func() {
			<-start
			errs[i] = store.Migrate(context.Background())
		})
	}
	close(start)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := stores[0].Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestStoresOfTwoSchemasKnowNothingOfEachOther(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	other := postgres.New(admin, postgres.WithSchema(nasty))
	if err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, store := range []*postgres.Store{postgres.New(admin), other} {
		if got := verdictOf(t, store, "a"); got != idempotency.Fresh {
			t.Errorf("%v in a schema where it is new", got)
		}
	}
	if got := verdictOf(t, other, "a"); got != idempotency.Duplicate {
		t.Errorf("%v in the schema where it is recorded", got)
	}
}

func TestSchemaThatWasNotMigratedSaysSo(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	for name, store := range map[string]inbox.Store[pgx.Tx]{
		"NoSchema":    postgres.New(newPool(t, url)),
		"OtherSchema": postgres.New(newPool(t, url), postgres.WithSchema("public")),
	} {
		atomic := func(keys ...string) error {
			return store.Atomic(t.Context(), claimsOf(keys...), func(context.Context, pgx.Tx, []idempotency.Verdict) error {
				t.Errorf("%s: work was called", name)
				return nil
			})
		}
		_, count := store.CountAttempt(t.Context(), scope, "a", "", retention)
		_, list := store.DeadLetters(t.Context(), "billing", all)
		_, prune := store.Prune(t.Context(), 10)
		for doing, err := range map[string]error{
			"Check": store.Check(t.Context()), "one claim": atomic("a"), "two claims": atomic("a", "b"),
			"CountAttempt": count, "DeadLetters": list, "Prune": prune,
		} {
			if !errors.Is(err, idempotency.ErrNotMigrated) || !strings.Contains(err.Error(), "Migrate") {
				t.Errorf("%s, %s: %v", name, doing, err)
			}
		}
	}
}

// leastPrivilege are the grants of the package documentation, which a test compares.
const leastPrivilege = `
GRANT USAGE ON SCHEMA onceward TO consumer;
GRANT SELECT ON onceward.migration TO consumer;
GRANT SELECT, INSERT, DELETE ON onceward.record TO consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.attempt, onceward.dead_letter, onceward.parked_key TO consumer;`

func TestConsumerWithLeastPrivilegeDoesAllButMigrate(t *testing.T) {
	t.Parallel()
	documentation, err := os.ReadFile("../../store/postgres/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(strings.TrimSpace(leastPrivilege), "consumer;", "billing_consumer;")) {
		if !bytes.Contains(documentation, []byte("//\t"+strings.TrimSpace(line)+"\n")) {
			t.Errorf("the package documentation does not have: %s", line)
		}
	}

	url, admin := newDatabase(t)
	// Roles are the whole server's: this test's own have names of their own.
	role := fmt.Sprintf("consumer_%d", os.Getpid())
	execute(t, admin, `CREATE ROLE `+role)
	t.Cleanup(func() { execute(t, admin, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	execute(t, admin, strings.ReplaceAll(leastPrivilege, "TO consumer", "TO "+role)+`GRANT INSERT ON effect TO `+role)
	pool := newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	store := postgres.New(pool)
	if err := everything(t, store); err != nil {
		t.Error(err)
	}
	execute(t, admin, `DELETE FROM onceward.migration`)
	wantMissingRight(t, store.Migrate(t.Context()), "own schema", "schema onceward")
	other := postgres.New(pool, postgres.WithSchema("other"))
	wantMissingRight(t, other.Migrate(t.Context()), "CREATE on the database", "permission denied for database")
	execute(t, admin, `REVOKE DELETE ON onceward.record FROM `+role)
	_, err = store.Prune(t.Context(), 1)
	wantMissingRight(t, err, "prune", "table record", "Rights")
}

// wantMissingRight: the error says what is missing where, and what to do.
func wantMissingRight(t *testing.T, err error, says ...string) {
	t.Helper()
	wantIs(t, err, idempotency.ErrUnavailable)
	for _, part := range says {
		if err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want it to say %q", err, part)
		}
	}
}

// everything calls each method of a store where it does something.
func everything(t *testing.T, store inbox.Store[pgx.Tx]) error {
	t.Helper()
	ctx := t.Context()
	fingerprinted := claimsOf("f", "g")
	fingerprinted[0].Fingerprint = []byte("x")
	parked := letterOf("a", "k")
	steps := []func() error{
		func() error { return store.Check(ctx) },
		func() error { return store.Atomic(ctx, claimsOf("one"), effectOf("one")) },
		func() error { return store.Atomic(ctx, fingerprinted, effectOf("f")) },
		func() error { return store.Atomic(ctx, fingerprinted, effectOf("f")) },
		func() error { _, err := store.CountAttempt(ctx, scope, "a", "cause", retention); return err },
		func() error { _, err := store.CountAttempt(ctx, scope, "a", "cause", retention); return err },
		func() error {
			return store.Atomic(ctx, nil, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
				if err := store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{parked, parked, letterOf("b", "j")}); err != nil {
					return err
				}
				found, err := store.ParkedKeys(ctx, tx, "billing", "orders", [][]byte{[]byte("k")})
				if err == nil && !found[0] {
					err = errors.New("the key is not parked")
				}
				return err
			})
		},
		func() error {
			letters, err := store.DeadLetters(ctx, "billing", all)
			if err != nil || len(letters) != 3 {
				return fmt.Errorf("%d dead letters, error %w", len(letters), err)
			}
			if err := store.FailDeadLetter(ctx, "billing", letters[0].Number, "again"); err != nil {
				return err
			}
			return store.TakeDeadLetter(ctx, "billing", letters[0].Number, func(context.Context, pgx.Tx, inbox.DeadLetter) error { return nil })
		},
		func() error { _, err := store.DiscardDeadLetters(ctx, "billing", all); return err },
		func() error { _, err := store.Prune(ctx, 10); return err },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func letterOf(id, key string) inbox.DeadLetter {
	return inbox.DeadLetter{
		Consumer: "billing", Reason: inbox.ReasonAttempts, Error: "boom", Attempts: 3, ParksKey: true,
		Message: inbox.Message{
			ID: id, Source: "orders", Topic: "orders", Key: []byte(key), Payload: []byte("{}"), Position: "orders/0/1",
			Headers: []inbox.Header{{Name: "content-type", Value: []byte("text/plain")}, {Name: "bin", Value: []byte{0xff}}},
		},
	}
}

func TestDeadLetterIsReadableInPsql(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	store := postgres.New(admin)
	err := store.Atomic(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		return store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letterOf("order-7", "customer-3")})
	})
	if err != nil {
		t.Fatal(err)
	}
	got := queryRow[string](t, admin, `SELECT concat_ws(' ', message_id, topic, message_key, convert_from(payload, 'UTF8'), headers, raw)
		FROM onceward.dead_letter`)
	want := `order-7 orders customer-3 {} [["content-type","text/plain"],["bin",{"base64":"/w=="}]]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDatabaseThatCannotHoldEveryIDIsRefused(t *testing.T) {
	t.Parallel()
	admin := newPool(t, stack.Postgres(t))
	name := fmt.Sprintf("latin_%d", os.Getpid())
	execute(t, admin, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'`)
	t.Cleanup(func() { execute(t, admin, `DROP DATABASE `+name+` WITH (FORCE)`) })
	latin := newPool(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.Database = name })
	for _, err := range []error{postgres.New(latin).Migrate(t.Context()), postgres.New(latin).Check(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "UTF8") {
			t.Errorf("got %v", err)
		}
	}
}
