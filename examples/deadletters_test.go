package examples_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// redrive is what the README shows.
func redrive(ctx context.Context, ledger *inbox.Inbox[*sql.Tx]) error {
	filter := inbox.Filter{Reason: inbox.ReasonAttempts, Topic: "orders"}
	letters, err := ledger.DeadLetters(ctx, filter)
	if err != nil {
		return err
	}
	for _, letter := range letters {
		log.Printf("%d: %s after %d attempts: %s", letter.Number, letter.Message.ID, letter.Attempts, letter.Error)
	}
	result, err := ledger.Redrive(ctx, filter, inbox.Apply) // or ledger.Discard; inbox.DryRun only counts
	if err == nil && result.Redriven != len(letters) {
		err = fmt.Errorf("not all were redriven: %+v", result)
	}
	return err
}

func TestReadmeRedrivesWhatTheHandlerGaveUp(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	broken, calls := true, 0
	ledger := inbox.New(store, "ledger", func(context.Context, *sql.Tx, inbox.Message) error {
		calls++
		if broken {
			return errors.New("the price list is empty")
		}
		return nil
	}, inbox.MaxAttempts(1), inbox.Logger(slog.New(slog.DiscardHandler)))

	results, err := ledger.Process(ctx, []inbox.Message{{ID: "order-1", Source: "orders", Topic: "orders", Position: "orders/0/0"}})
	if err != nil || results[0].Outcome != inbox.Parked {
		t.Fatalf("the failing message is %v, %v; want it parked", results, err)
	}
	broken = false
	if err := redrive(ctx, ledger); err != nil || calls != 2 {
		t.Errorf("redrive: %v, and the handler was called %d times in all, want 2", err, calls)
	}
	if left, err := ledger.DeadLetters(ctx, inbox.Filter{}); err != nil || len(left) > 0 {
		t.Errorf("after the redrive: %d dead letters, %v; want none", len(left), err)
	}
}
