package postgres_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// recorder notes the statements that a store sends, with their arguments.
type recorder struct {
	mu   sync.Mutex
	sent []pgx.TraceQueryStartData
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, data)
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range data.Batch.QueuedQueries {
		r.sent = append(r.sent, pgx.TraceQueryStartData{SQL: q.SQL, Args: q.Arguments})
	}
	return ctx
}

func (r *recorder) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestEveryStatementUsesItsIndex explains what each method sends, on tables
// that are too large to read whole, once for the arguments and once for any.
func TestEveryStatementUsesItsIndex(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `INSERT INTO onceward.record (scope, key, fingerprint, expires_at)
		SELECT 'billing/orders', n::text, '\x01', now() + n * interval '1 second' - interval '100 seconds' FROM generate_series(1, 50000) n`)
	execute(t, admin, `INSERT INTO onceward.attempt (scope, key, attempts, error, expires_at)
		SELECT 'billing/orders', n::text, 1, '', now() + n * interval '1 second' - interval '100 seconds' FROM generate_series(1, 50000) n`)
	execute(t, admin, `INSERT INTO onceward.dead_letter (consumer, topic, source, message_id, reason, error, attempts, message_key, position, parks_key)
		SELECT CASE WHEN n % 2 = 0 THEN 'billing' ELSE 'shipping' END, 'orders', '', n::text, 'attempts', '', 1, 'k' || n % 25000, '', true
		FROM generate_series(1, 50000) n`)
	execute(t, admin, `INSERT INTO onceward.parked_key (consumer, topic, message_key) SELECT DISTINCT consumer, topic, message_key FROM onceward.dead_letter`)
	execute(t, admin, `ANALYZE onceward.record, onceward.attempt, onceward.dead_letter, onceward.parked_key`)

	log := &recorder{}
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = log }))
	claims := claimsOf("1", "2", "new", "newer")
	for i := range claims {
		claims[i].Fingerprint = []byte("x")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	nothing := func(context.Context, pgx.Tx, []idempotency.Verdict) error { return nil }
	must(store.Atomic(t.Context(), claims, nothing))
	must(store.Atomic(t.Context(), claims[:1], nothing))
	_, err := store.CountAttempt(t.Context(), scope, "1", "", retention)
	must(err)
	must(store.Atomic(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		if _, err := store.ParkedKeys(ctx, tx, "billing", "orders", [][]byte{[]byte("k1"), []byte("k2")}); err != nil {
			return err
		}
		return store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letterOf("a", "k1")})
	}))
	for _, f := range []inbox.Filter{{Limit: 100}, {Limit: 100, Brief: true}, {Limit: 100, MessageID: "77"}, {Limit: 100, Numbers: []int64{5, 6}}} {
		_, err := store.DeadLetters(t.Context(), "billing", f)
		must(err)
	}
	must(store.TakeDeadLetter(t.Context(), "billing", 2, func(context.Context, pgx.Tx, inbox.DeadLetter) error { return nil }))
	must(store.FailDeadLetter(t.Context(), "billing", 4, "again"))
	_, err = store.DiscardDeadLetters(t.Context(), "billing", inbox.Filter{Limit: 10})
	must(err)
	_, err = store.Prune(t.Context(), 10)
	must(err)
	_, err = store.Prune(t.Context(), 1000)
	must(err)

	explained := 0
	for _, q := range log.sent {
		if !strings.Contains(q.SQL, `"onceward".`) || len(q.Args) == 0 {
			continue
		}
		explained++
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			if plan := explain(t, admin, mode, q); wholeTable.MatchString(plan) {
				t.Errorf("%s reads a whole table:\n%s\n%s", mode, q.SQL, plan)
			}
		}
	}
	if explained < 15 {
		t.Errorf("%d statements were explained: not all were seen", explained)
	}
}

func TestManyDeadLettersAreOneStatement(t *testing.T) {
	t.Parallel()
	url, _ := newDatabase(t)
	log := &recorder{}
	store := postgres.New(newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = log }))
	letters := make([]inbox.DeadLetter, 100)
	for i := range letters {
		letters[i] = letterOf(strconv.Itoa(i), "k")
	}
	err := store.Atomic(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, _ []idempotency.Verdict) error {
		return store.AddDeadLetters(ctx, tx, letters)
	})
	if err != nil {
		t.Fatal(err)
	}
	// BEGIN, a bound on waits, the key parked and locked, the letters, the bound as it was, COMMIT.
	if len(log.sent) != 7 {
		t.Errorf("%d statements were sent", len(log.sent))
	}
	found, err := store.DeadLetters(t.Context(), "billing", all)
	if err != nil || len(found) != len(letters) {
		t.Fatalf("%d dead letters, error %v", len(found), err)
	}
	for i, letter := range found {
		if letter.Message.ID != letters[i].Message.ID {
			t.Fatalf("letter %d is %s", i, letter.Message.ID)
		}
	}
}

var wholeTable = regexp.MustCompile(`Seq Scan on (record|attempt|dead_letter|parked_key)\b`)

// explain prepares the statement as the store does, and returns its plan.
func explain(t *testing.T, admin *pgxpool.Pool, mode string, q pgx.TraceQueryStartData) string {
	t.Helper()
	return explainBy(t, admin, `EXPLAIN`, mode, q)
}

func explainBy(t *testing.T, admin *pgxpool.Pool, verb, mode string, q pgx.TraceQueryStartData) string {
	t.Helper()
	ctx := t.Context()
	tx, err := admin.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var values []string
	for _, arg := range q.Args {
		switch v := arg.(type) {
		case nil:
			values = append(values, "NULL")
		case []byte:
			values = append(values, fmt.Sprintf(`'\x%x'`, v))
		case string:
			values = append(values, "'"+strings.ReplaceAll(v, "'", "''")+"'")
		default:
			values = append(values, fmt.Sprint(v))
		}
	}
	for _, statement := range []string{
		`SET LOCAL plan_cache_mode = ` + mode,
		`PREPARE explained AS ` + q.SQL,
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	rows, _ := tx.Query(ctx, verb+` EXECUTE explained(`+strings.Join(values, ", ")+`)`, pgx.QueryExecModeSimpleProtocol)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("explain %s: %v", q.SQL, err)
	}
	if _, err := tx.Exec(ctx, `DEALLOCATE explained`); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
