package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/inbox"
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
