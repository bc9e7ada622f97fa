package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/sqlite"
)

// open returns a store in a folder of its own, and what removes it.
func open(ctx context.Context) (*sqlite.Store, func()) {
	folder, err := os.MkdirTemp("", "outbox-example-")
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.Open(ctx, filepath.Join(folder, "example.db"), sqlite.WithoutFsync())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE orders (id TEXT)"); err != nil {
		log.Fatal(err)
	}
	return store, func() {
		if err := errors.Join(store.Close(), os.RemoveAll(folder)); err != nil {
			log.Print(err)
		}
	}
}

// placeOrder writes an order and the event that tells of it, in one transaction.
func placeOrder(ctx context.Context, store *sqlite.Store, events *outbox.Outbox[*sql.Tx], id string) error {
	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // It has ended if it was committed.
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id); err != nil {
		return err
	}
	if err := events.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: []byte(id), Payload: []byte("placed " + id)}); err != nil {
		return err
	}
	if id == "order-2" {
		return errors.New("out of stock")
	}
	return tx.Commit()
}

// printer is a publisher for whom a broker is the standard output.
type printer struct{ last func() }

func (p printer) Publish(_ context.Context, events []outbox.Event) []error {
	for _, e := range events {
		fmt.Printf("%s: %s\n", e.Topic, e.Payload) //nolint:forbidigo // the output of an example
		if string(e.Key) == "order-3" {
			p.last()
		}
	}
	return make([]error, len(events)) // all acknowledged
}

// An event is published if the transaction commits in which it was written, and only then.
func ExampleNew() {
	ctx := context.Background()
	store, cleanup := open(ctx)
	defer cleanup()

	events := outbox.New(store)
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		if err := placeOrder(ctx, store, events, id); err != nil {
			fmt.Println(id, "failed:", err)
		}
	}

	ctx, cancel := context.WithCancel(ctx)
	relay := outbox.NewRelay(store, printer{last: cancel}, outbox.RelayConfig{
		Name: "events", Lanes: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err := relay.Run(ctx); err != nil { // until the last event was published
		log.Fatal(err)
	}
	// Output:
	// order-2 failed: out of stock
	// orders: placed order-1
	// orders: placed order-3
}

// A relay runs until its context ends, in any number of processes: they share the work.
func ExampleNewRelay() {
	ctx, cancel := context.WithCancel(context.Background())
	store, cleanup := open(ctx)
	defer cleanup()

	if err := placeOrder(ctx, store, outbox.New(store), "order-3"); err != nil {
		log.Fatal(err)
	}
	relay := outbox.NewRelay(store, printer{last: cancel}, outbox.RelayConfig{
		Name:   "orders",
		Topics: []string{"orders", "orders.*"},
		Policy: outbox.ParkKey,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err := relay.Check(ctx); err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("published:", relay.Stats().Published)
	// Output:
	// orders: placed order-3
	// published: 1
}

// Each topic goes to the first route that matches it.
func ExampleRoutes() {
	events, audit := printer{}, printer{}
	publisher := outbox.Routes(
		outbox.Route{Topics: []string{"audit.*"}, Publisher: audit},
		outbox.Route{Topics: []string{"*"}, Publisher: events},
	)
	results := publisher.Publish(context.Background(), []outbox.Event{
		{Message: outbox.Message{Topic: "audit.login", Payload: []byte("ann")}},
	})
	fmt.Println(results[0])
	// Output:
	// audit.login: ann
	// <nil>
}
