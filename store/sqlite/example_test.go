package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// The application's table and the record of what was handled live in one file,
// and change in one transaction.
func ExampleOpen() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "onceward")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)

	store, err := sqlite.Open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		panic(err)
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, `CREATE TABLE invoice (order_id TEXT, cents INTEGER)`); err != nil {
		panic(err)
	}

	billing := inbox.New(store, "billing", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO invoice VALUES (?, ?)`, m.ID, string(m.Payload))
		return err
	})

	// The broker delivers the first order twice.
	first := inbox.Message{ID: "order-1", Source: "orders", Topic: "orders", Payload: []byte("1999")}
	second := inbox.Message{ID: "order-2", Source: "orders", Topic: "orders", Payload: []byte("500")}
	results, err := billing.Process(ctx, []inbox.Message{first, second, first})
	if err != nil {
		panic(err)
	}
	for _, result := range results {
		fmt.Println(result.Outcome)
	}

	var invoices, cents int
	if err := store.DB().QueryRowContext(ctx, `SELECT count(*), sum(cents) FROM invoice`).Scan(&invoices, &cents); err != nil {
		panic(err)
	}
	fmt.Println(invoices, "invoices,", cents, "cents")
	// Output:
	// processed
	// processed
	// duplicate
	// 2 invoices, 2499 cents
}

// printer stands for a broker.
type printer struct{ published chan<- string }

func (p printer) Publish(_ context.Context, events []outbox.Event) []error {
	for _, event := range events {
		p.published <- fmt.Sprintf("%s of %s: %s", event.Topic, event.Key, event.Payload)
	}
	return make([]error, len(events)) // All are acknowledged.
}

// An event commits with the work that it tells of, or not at all, and a relay
// publishes it.
func ExampleStore_Append() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	folder, err := os.MkdirTemp("", "onceward")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)

	store, err := sqlite.Open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		panic(err)
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
		panic(err)
	}

	events := outbox.New(store)
	place := func(id string) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // Without effect after the commit.
		if err := events.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: []byte(id), Payload: []byte("placed")}); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id); err != nil {
			return err
		}
		return tx.Commit()
	}
	for _, id := range []string{"order-1", "order-2", "order-1", "order-3"} {
		fmt.Println(id, "failed:", place(id) != nil)
	}

	published := make(chan string)
	relay := outbox.NewRelay(store, printer{published}, outbox.RelayConfig{Name: "events"})
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for range 3 {
		fmt.Println(<-published)
	}
	stop()
	if err := <-ended; err != nil {
		panic(err)
	}
	// Unordered output:
	// order-1 failed: false
	// order-2 failed: false
	// order-1 failed: true
	// order-3 failed: false
	// orders of order-1: placed
	// orders of order-2: placed
	// orders of order-3: placed
}
