// Order-pipeline is a chain of two services with Kafka between them: every order
// is billed once and every invoice is shipped once, whatever dies when.
//
//	topic orders ─▶ billing ─▶ invoice + event, one transaction
//	                                      │ relay
//	                topic invoices ◀──────┘
//	                      └─▶ shipping ─▶ shipment
//
// The three parts run in one process here, and any number of such processes may
// run; in earnest each part would be a program of its own with the same few lines.
//
//	export DATABASE_URL=postgres://USER:PASSWORD@localhost:5432/DATABASE
//	export KAFKA_BROKERS=localhost:9092
//	psql "$DATABASE_URL" -c 'CREATE TABLE invoice (order_id text NOT NULL, cents bigint NOT NULL)'
//	psql "$DATABASE_URL" -c 'CREATE TABLE shipment (order_id text NOT NULL, cents bigint NOT NULL)'
//	go run ./examples/order-pipeline
//
// The topics orders and invoices must exist. An order is {"cents": 100} with its
// id in the header onceward-id. Interrupt or SIGTERM ends it cleanly.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	store := postgres.New(pool)
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers})
	defer publisher.Close()
	relay := outbox.NewRelay(store, publisher, outbox.RelayConfig{Name: "events"})

	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error {
		orders := kafka.ConsumerConfig{Brokers: brokers, Group: "billing", Topics: []string{"orders"}}
		return kafka.Consume(ctx, orders, billing(store))
	})
	parts.Go(func() error { return relay.Run(ctx) })
	parts.Go(func() error {
		invoices := kafka.ConsumerConfig{Brokers: brokers, Group: "shipping", Topics: []string{"invoices"}}
		return kafka.Consume(ctx, invoices, shipping(store))
	})
	return parts.Wait()
}

type invoice struct {
	OrderID string `json:"order_id"`
	Cents   int64  `json:"cents"`
}

// billing writes an invoice and the event that says so. Both are there, or neither.
func billing(store *postgres.Store) inbox.Processor {
	events := outbox.New(store)
	return inbox.New(store, "billing", func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		bill := invoice{OrderID: m.ID}
		if err := json.Unmarshal(m.Payload, &bill); err != nil {
			return inbox.Permanent(err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO invoice (order_id, cents) VALUES ($1, $2)", bill.OrderID, bill.Cents); err != nil {
			return err
		}
		payload, err := json.Marshal(bill)
		if err != nil {
			return err
		}
		return events.Publish(ctx, tx, outbox.Message{Topic: "invoices", Key: []byte(bill.OrderID), Payload: payload})
	})
}

// shipping ships an invoice once: the event's ID is in every copy that Kafka delivers.
func shipping(store *postgres.Store) inbox.Processor {
	return inbox.New(store, "shipping", func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		var bill invoice
		if err := json.Unmarshal(m.Payload, &bill); err != nil {
			return inbox.Permanent(err)
		}
		_, err := tx.Exec(ctx, "INSERT INTO shipment (order_id, cents) VALUES ($1, $2)", bill.OrderID, bill.Cents)
		return err
	})
}
