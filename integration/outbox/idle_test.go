package outbox

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// statements counts what a pool sends, BEGIN and COMMIT included.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.n.Add(1) }

func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestIdleRelayMakesAtMostTwoStatementsASecond measures a relay with the default settings, sixteen lanes and nothing to do: also while a
// transaction stays open elsewhere, which moves what every snapshot says.
func TestIdleRelayMakesAtMostTwoStatementsASecond(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	admin := newDatabase(t, url)
	w := newWriters(t, url)
	w.run(t.Context(), newRandom(seed(t)), 2, 10)
	commit := w.hold()
	var sent statements
	pool := newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })
	published := newRecorder(1)
	relay := startRelay(postgres.New(pool), published, outbox.RelayConfig{Name: "idle", Lanes: 16, Logger: newLogger(t)})
	published.journal.await(t, "what there is to publish", readLedger(t, admin))
	awaitPublished(t, postgres.New(admin), "idle")

	const seconds = 15                // with the first pruning, which takes seven statements and comes within 10 s
	pause(t.Context(), 2*time.Second) // it polls ever more rarely at first
	before := sent.n.Load()
	pause(t.Context(), seconds*time.Second) // what is measured is how much happens meanwhile
	perSecond := float64(sent.n.Load()-before) / seconds
	if perSecond > 2 {
		t.Errorf("%.2f statements a second, want at most 2", perSecond)
	}
	if perSecond == 0 {
		t.Error("no statement at all: the count is wrong")
	}
	t.Logf("%.2f statements a second", perSecond)
	commit()
	published.journal.await(t, "the next event", readLedger(t, admin))
	relay.stop(t)
}
