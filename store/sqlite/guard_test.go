package sqlite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/onceward/onceward/idempotency"
)

// running holds a channel for each test, which the SQL function of its name closes.
//
//nolint:gochecknoglobals // Functions are the driver's, for all connections.
var running sync.Map

func registerRunning() {
	sqlite.MustRegisterScalarFunction("running", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		if channel, ok := running.LoadAndDelete(args[0]); ok {
			close(channel.(chan struct{})) //nolint:forcetypeassert // Nothing else is in it.
		}
		return int64(1), nil
	})
}

// endless is a statement that nothing but its context ends within minutes.
const endless = `WITH RECURSIVE n(i) AS (SELECT running(?) UNION ALL SELECT i+1 FROM n LIMIT 4000000000)`

// TestNothingIsWrittenAfterTheTransactionHasEnded: it would be committed by
// itself, and done once more when the message is handled again.
func TestNothingIsWrittenAfterTheTransactionHasEnded(t *testing.T) {
	t.Parallel()
	exec := func(statement string) func(ctx context.Context, tx *sql.Tx) {
		return func(ctx context.Context, tx *sql.Tx) { _, _ = tx.ExecContext(ctx, statement) }
	}
	for name, c := range map[string]struct {
		end  func(ctx context.Context, tx *sql.Tx)
		next idempotency.Verdict
	}{
		"interrupted": {func(ctx context.Context, tx *sql.Tx) {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			name, runs := rand.Text(), make(chan struct{})
			running.Store(name, runs)
			go func() {
				<-runs
				stop()
			}()
			_, _ = tx.ExecContext(ctx, `INSERT INTO effect `+endless+` SELECT i FROM n`, name)
		}, idempotency.Fresh},
		"or rollback":     {exec(`INSERT OR ROLLBACK INTO effect VALUES (NULL)`), idempotency.Fresh},
		"rollback":        {exec(`ROLLBACK`), idempotency.Fresh},
		"commit":          {exec(`COMMIT`), idempotency.Duplicate},
		"commit and more": {exec(`COMMIT; BEGIN`), idempotency.Duplicate},
	} {
		for how, pass := range map[string]bool{"told": false, "swallowed": true} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				d := newDatabase(t)
				store := d.open(t, time.Minute)
				err := store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
					c.end(ctx, tx)
					err := d.AddEffect(ctx, tx, "after")
					if pass {
						return nil
					}
					return err
				})
				wantIs(t, err, idempotency.ErrTransactionEnded)
				if n := d.CountEffects(t, "after"); n != 0 {
					t.Errorf("%d effects outside the transaction", n)
				}
				// The connection serves on.
				err = store.Atomic(t.Context(), claim("a"), func(ctx context.Context, tx *sql.Tx, verdicts []idempotency.Verdict) error {
					if verdicts[0] != c.next {
						t.Errorf("the next claim is %v, want %v", verdicts[0], c.next)
					}
					return d.AddEffect(ctx, tx, "next")
				})
				if n := d.CountEffects(t, "next"); err != nil || n != 1 {
					t.Errorf("afterwards: %v, %d effects", err, n)
				}
			})
		}
	}
}

// TestGoroutineLeftOnTheTransactionDoesNotHoldAtomicUp, and is named.
func TestGoroutineLeftOnTheTransactionDoesNotHoldAtomicUp(t *testing.T) {
	t.Parallel()
	own := errors.New("card declined")
	for name, result := range map[string]error{"succeeds": nil, "fails": own} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			store := d.open(t, time.Minute)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			done, left, runs := make(chan error, 1), make(chan struct{}), make(chan struct{})
			running.Store(name, runs)
			go func() {
				done <- store.Atomic(t.Context(), claim("a"), func(work context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
					if err := d.AddEffect(work, tx, "a"); err != nil {
						return err
					}
					go func() {
						defer close(left)
						_, _ = tx.ExecContext(ctx, endless+` SELECT count(*) FROM n`, name)
					}()
					<-runs
					return result
				})
			}()
			var err error
			select {
			case err = <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("Atomic did not return")
			}
			if err == nil || !strings.Contains(err.Error(), "goroutines") || result != nil && !errors.Is(err, result) {
				t.Errorf("got %v", err)
			}
			stop()
			<-left
			err = store.Atomic(t.Context(), claim("a"), func(_ context.Context, _ *sql.Tx, verdicts []idempotency.Verdict) error {
				if verdicts[0] != idempotency.Fresh {
					t.Errorf("the next claim is %v", verdicts[0])
				}
				return nil
			})
			if n := d.CountEffects(t, "a"); err != nil || n != 0 {
				t.Errorf("afterwards: %v, %d effects", err, n)
			}
		})
	}
}
