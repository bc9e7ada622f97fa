package outbox

import (
	"context"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/store/postgres"
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(ordersVariable); ok {
		os.Exit(beMember(text))
	}
	os.Exit(stack.Main(m))
}

// patience bounds every wait on a busy machine.
const patience = 60 * time.Second

// newPool opens a pool that is closed after the test.
func newPool(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	for _, c := range configure {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// newDatabase makes a migrated database with the tables of the checker. admin is the test's own way to it.
func newDatabase(t testing.TB, url string) (admin *pgxpool.Pool) {
	t.Helper()
	admin = newPool(t, url)
	if err := postgres.New(admin).Migrate(t.Context()); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	execute(t, admin, ledgerTables)
	return admin
}

func execute(t testing.TB, pool *pgxpool.Pool, statement string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func queryRow[T any](t testing.TB, pool *pgxpool.Pool, statement string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// eventually asks again and again until it is so, or the test has failed anyway.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come about within %v", what, patience)
		}
		pause(t.Context(), 5*time.Millisecond)
	}
}

// pause is a step of a schedule, or the time between two looks at something that gives no sign.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// seed is ONCEWARD_OUTBOX_SEED, or a new one, mixed with the test's name.
func seed(t testing.TB) uint64 {
	t.Helper()
	base := rand.Uint64() >> 1
	if text := os.Getenv("ONCEWARD_OUTBOX_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("ONCEWARD_OUTBOX_SEED is %q: set it to a number", text)
		}
		base = given
	}
	t.Logf("to repeat: ONCEWARD_OUTBOX_SEED=%d", base)
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name()))
	return base ^ name.Sum64()
}

func newRandom(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0))
}

// newLogger writes to the test's log as long as the test runs, and only what is worth a person's attention.
func newLogger(t testing.TB) *slog.Logger {
	t.Helper()
	w := &logWriter{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// quiet is the logger of relays whose outages are made by the test.
var quiet = slog.New(slog.DiscardHandler)

type logWriter struct {
	mu    sync.Mutex
	t     testing.TB
	ended bool
}

func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Log(strings.TrimSpace(string(line)))
	}
	return len(line), nil
}

func (w *logWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}
