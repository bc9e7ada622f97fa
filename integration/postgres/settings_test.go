package postgres_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// TestOperatorsOfTheDatabaseDoNotReplaceTheServers: with one for bigint and
// interval, which the server itself lacks, records would expire at once.
func TestOperatorsOfTheDatabaseDoNotReplaceTheServers(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `
		CREATE FUNCTION public.nothing(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$;
		CREATE FUNCTION public.nothing(numeric, integer) RETURNS numeric LANGUAGE sql AS $$ SELECT 0.0 $$;
		CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS $$ SELECT 'no' $$;
		CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.nothing);
		CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.nothing)`)
	store := postgres.New(newPool(t, url))
	verdictOf(t, store, "a")
	if err := store.Atomic(t.Context(), claimsOf("b", "c"), effectOf("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.CountAttempt(t.Context(), scope, "d", "cause", retention); err != nil {
		t.Fatal(err)
	}
	const kept = `SELECT count(*) FROM (SELECT expires_at FROM onceward.record UNION ALL SELECT expires_at FROM onceward.attempt) x
		WHERE expires_at BETWEEN clock_timestamp() + make_interval(secs => $1::float8 - 60)
		AND clock_timestamp() + make_interval(secs => $1::float8)`
	if n := queryRow[int](t, admin, kept, retention.Seconds()); n != 4 {
		t.Errorf("%d of 4 rows are kept for their retention", n)
	}
}

func TestNoFingerprintIsNoneWithArrayNullsOff(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["array_nulls"] = "off" }))
	claims := []idempotency.Claim{
		{Scope: scope, Key: "none", Retention: time.Hour},
		{Scope: scope, Key: "empty", Retention: time.Hour, Fingerprint: []byte{}},
		{Scope: scope, Key: "some", Retention: time.Hour, Fingerprint: []byte{0, 0xff, '\\', '"'}},
	}
	if err := store.Atomic(t.Context(), claims, effectOf("a")); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"none": "NULL", "empty": `\x`, "some": `\x00ff5c22`} {
		if got := queryRow[string](t, admin, `SELECT coalesce(fingerprint::text, 'NULL') FROM onceward.record WHERE key = $1`, key); got != want {
			t.Errorf("the fingerprint of %s is %s, want %s", key, got, want)
		}
	}
}

// TestBytesAreReadWhateverTheirFormIs, in every mode: some of pgx's ask for text, and it reads one form of two.
func TestBytesAreReadWhateverTheirFormIs(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			escape := func(c *pgx.ConnConfig) {
				c.RuntimeParams["bytea_output"], c.DefaultQueryExecMode = "escape", mode
			}
			overPgx := postgres.New(newPool(t, url, func(c *pgxpool.Config) { escape(c.ConnConfig) }))
			overSQL := postgres.NewSQL(newSQLPool(t, url, escape))
			wantBytesRead(t, overPgx, mode.String()+" pgx")
			wantBytesRead(t, overSQL, mode.String()+" sql")
		})
	}
}

// wantBytesRead demands that fingerprints are compared, and that payloads come back.
func wantBytesRead[Tx any](t *testing.T, store inbox.Store[Tx], name string) {
	t.Helper()
	letter := letterOf(name, name)
	letter.Consumer = name
	letter.Message.Payload = append([]byte{0, 0xff, '\\', 'x', '\n'}, strings.Repeat("long", 100)...)
	claims := []idempotency.Claim{{Scope: scope, Key: name, Retention: time.Hour, Fingerprint: []byte{0xff, '\\'}}}
	for _, want := range []idempotency.Verdict{idempotency.Fresh, idempotency.Duplicate, idempotency.Reused} {
		err := store.Atomic(t.Context(), claims, func(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
			if verdicts[0] != want {
				t.Errorf("%s: %v, want %v", name, verdicts[0], want)
			}
			if want != idempotency.Fresh {
				return nil
			}
			return store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letter})
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want == idempotency.Duplicate {
			claims[0].Fingerprint = []byte{0xff}
		}
	}
	letters, err := store.DeadLetters(t.Context(), name, all)
	if err != nil || len(letters) != 1 || !bytes.Equal(letters[0].Message.Payload, letter.Message.Payload) {
		t.Fatalf("%s: letters are %v, error %v", name, letters, err)
	}
	err = store.TakeDeadLetter(t.Context(), name, letters[0].Number, func(_ context.Context, _ Tx, taken inbox.DeadLetter) error {
		if !bytes.Equal(taken.Message.Payload, letter.Message.Payload) {
			t.Errorf("%s: payload is %q", name, taken.Message.Payload)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestCheckTellsWhichRightIsMissing, also those that only a failed message needs.
func TestCheckTellsWhichRightIsMissing(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	store := postgres.New(newPool(t, url, one, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = "pg_monitor" }))
	execute(t, admin, `GRANT USAGE ON SCHEMA onceward TO pg_monitor; GRANT SELECT ON onceward.migration TO pg_monitor;
		GRANT SELECT, INSERT, DELETE ON onceward.record TO pg_monitor`)
	for _, missing := range []string{"attempt", "dead_letter", "parked_key"} {
		err := store.Check(t.Context())
		wantIs(t, err, idempotency.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "INSERT on "+missing) {
			t.Errorf("got %v, want it to name %s", err, missing)
		}
		execute(t, admin, `GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.`+missing+` TO pg_monitor`)
	}
	if err := store.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWrongDatabaseLeadsWithTheCure(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	wrong := newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Database = "nowhere" })
	err := postgres.New(wrong).Check(t.Context())
	wantIs(t, err, idempotency.ErrUnavailable)
	if err == nil || !strings.HasPrefix(err.Error(), "postgres: mend user, password or database in the connection URL") {
		t.Errorf("got %v", err)
	}
}

func TestStatementAfterASwallowedOneSaysWhatWentBefore(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	err := postgres.New(newPool(t, url)).Atomic(t.Context(), nil, effectOf("a", func(tx pgx.Tx) error {
		_, _ = tx.Exec(t.Context(), `SELECT 1/0`)
		_, err := tx.Exec(t.Context(), `SELECT 1`)
		return err
	}))
	if err == nil || !strings.Contains(err.Error(), "an earlier statement of the handler failed and its error was not returned") {
		t.Errorf("got %v", err)
	}
}
