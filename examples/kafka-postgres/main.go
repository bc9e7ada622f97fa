// Kafka-postgres is the smallest honest service: every message of the topic
// "orders" becomes exactly one row of the table ledger.
//
//	export DATABASE_URL=postgres://USER:PASSWORD@localhost:5432/DATABASE
//	export KAFKA_BROKERS=localhost:9092
//	psql "$DATABASE_URL" -c 'CREATE TABLE ledger (order_id text NOT NULL, entry jsonb NOT NULL)'
//	go run ./examples/kafka-postgres
//
// The topic must exist. Interrupt or SIGTERM ends it cleanly: what is in hand
// is finished, its offsets are committed, and the exit status is 0.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
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
	ledger := inbox.New(store, "ledger", func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, "INSERT INTO ledger (order_id, entry) VALUES ($1, $2)", m.ID, string(m.Payload))
		return err
	})
	return kafka.Consume(ctx, kafka.ConsumerConfig{
		Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		Group:   "ledger",
		Topics:  []string{"orders"},
	}, ledger)
}
