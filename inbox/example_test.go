package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// quiet keeps the log out of the examples' output.
var quiet = inbox.Logger(slog.New(slog.DiscardHandler))

// open returns a store in a folder of its own, and what removes it.
func open(ctx context.Context) (*sqlite.Store, func()) {
	folder, err := os.MkdirTemp("", "inbox-example-")
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.Open(ctx, filepath.Join(folder, "example.db"), sqlite.WithoutFsync())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE invoices (order_id TEXT, cents INTEGER)"); err != nil {
		log.Fatal(err)
	}
	return store, func() {
		if err := errors.Join(store.Close(), os.RemoveAll(folder)); err != nil {
			log.Print(err)
		}
	}
}

// invoices counts the effects.
func invoices(ctx context.Context, store *sqlite.Store) (n int) {
	if err := store.DB().QueryRowContext(ctx, "SELECT count(*) FROM invoices").Scan(&n); err != nil {
		log.Fatal(err)
	}
	return n
}

func order(id, customer string) inbox.Message {
	return inbox.Message{ID: id, Source: "orders", Topic: "orders", Key: []byte(customer)}
}

// A message that is delivered twice has one effect, because the record that it
// was handled is in the same transaction.
func ExampleNew() {
	ctx := context.Background()
	store, cleanup := open(ctx)
	defer cleanup()

	billing := inbox.New(store, "billing", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 100)", m.ID)
		return err
	}, quiet)

	// An adapter does this with what the broker delivers.
	results, err := billing.Process(ctx, []inbox.Message{
		order("order-1", "ann"), order("order-2", "bob"), order("order-1", "ann"),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, result := range results {
		fmt.Println(result.Outcome)
	}
	fmt.Println("invoices:", invoices(ctx, store))
	// Output:
	// processed
	// processed
	// duplicate
	// invoices: 2
}

// A bulk handler receives all new messages of a batch in one call.
func ExampleNewBulk() {
	ctx := context.Background()
	store, cleanup := open(ctx)
	defer cleanup()

	billing := inbox.NewBulk(store, "billing", func(ctx context.Context, tx *sql.Tx, ms []inbox.Message) error {
		fmt.Println("new messages:", len(ms))
		for _, m := range ms {
			if _, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 100)", m.ID); err != nil {
				return err
			}
		}
		return nil
	}, inbox.Batch(100), quiet)

	for range 2 {
		_, err := billing.Process(ctx, []inbox.Message{order("order-1", "ann"), order("order-2", "bob")})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("invoices:", invoices(ctx, store))
	// Output:
	// new messages: 2
	// invoices: 2
}

// A message that no retry will cure is set aside, and redriven when its cause has
// gone. With ParkKey, the later messages of the same customer wait behind it.
func ExampleInbox_Redrive() {
	ctx := context.Background()
	store, cleanup := open(ctx)
	defer cleanup()

	known := map[string]bool{"bob": true}
	billing := inbox.New(store, "billing", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		if !known[string(m.Key)] {
			return inbox.Permanent(errors.New("no such customer"))
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 100)", m.ID)
		return err
	}, inbox.ParkKey(), quiet)

	results, err := billing.Process(ctx, []inbox.Message{
		order("order-1", "ann"), order("order-2", "bob"), order("order-3", "ann"),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, result := range results {
		fmt.Println(result.Outcome)
	}
	letters, err := billing.DeadLetters(ctx, inbox.Filter{})
	if err != nil {
		log.Fatal(err)
	}
	for _, letter := range letters {
		fmt.Println(letter.Message.ID, letter.Reason)
	}

	known["ann"] = true
	redriven, err := billing.Redrive(ctx, inbox.Filter{Key: []byte("ann")}, inbox.Apply)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("redriven:", redriven.Redriven)
	fmt.Println("invoices:", invoices(ctx, store))
	// Output:
	// parked
	// processed
	// parked
	// order-1 permanent
	// order-3 behind
	// redriven: 2
	// invoices: 3
}

// Adapters find the ID of a message by an Identity.
func ExampleIdentity() {
	identity := inbox.Identity{
		Headers: []string{"MessageId"}, // as MassTransit writes it
		Missing: inbox.PositionID,      // better than nothing: tells redeliveries only
	}
	for _, m := range []inbox.Message{
		{Headers: []inbox.Header{{Name: "ce_id", Value: []byte("A-1")}, {Name: "ce_source", Value: []byte("/shop")}}},
		{Headers: []inbox.Header{{Name: "MessageId", Value: []byte("7f0c")}}, Source: "orders"},
		{Source: "orders", Position: "orders/3/1042"},
	} {
		identity.Resolve(&m, "")
		fmt.Println(m.ID, "of", m.Source)
	}
	// Output:
	// A-1 of ce:/shop
	// 7f0c of orders
	// orders/3/1042 of orders
}
