package examples_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"path/filepath"
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// redrive is what the README shows.
func redrive[Tx any](ctx context.Context, ledger *inbox.Inbox[Tx]) (inbox.RedriveResult, error) {
	filter := inbox.Filter{Reason: inbox.ReasonAttempts, Topic: "orders"}
	letters, err := ledger.DeadLetters(ctx, filter)
	if err != nil {
		return inbox.RedriveResult{}, err
	}
	for _, letter := range letters {
		log.Printf("%d: %s after %d attempts: %s", letter.Number, letter.Message.ID, letter.Attempts, letter.Error)
	}
	return ledger.Redrive(ctx, filter, inbox.Apply) // or ledger.Discard
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
	}, inbox.MaxAttempts(1))

	results, err := ledger.Process(ctx, []inbox.Message{{ID: "order-1", Source: "orders", Topic: "orders", Position: "orders/0/0"}})
	if err != nil || results[0].Outcome != inbox.Parked {
		t.Fatalf("the failing message is %v, %v; want it parked", results, err)
	}
	broken = false
	result, err := redrive(ctx, ledger)
	if err != nil || result.Redriven != 1 || calls != 2 {
		t.Errorf("redrive: %+v, %v after %d calls; want 1 redriven after 2", result, err, calls)
	}
}
