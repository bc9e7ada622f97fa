// Command kafka measures the Kafka consumer against kafka.Reader, and its memory.
//
//	go run ./bench/kafka [-rounds 6] [-messages 640000]
//
// It starts an Apache Kafka and a PostgreSQL of its own, the latter with fsync
// and synchronous_commit on. What is compared with what stands in bench/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/bench/internal/tables"
	"github.com/onceward/onceward/integration/stack"
)

const (
	targetReading = 2 // against kafka.Reader
	targetInbox   = 3 // against the hand-written loop
	// Our own: what the library may weigh against the same batches by hand.
	targetSameBatch = 0.9
	targetMemory    = 100 // MB
)

func main() {
	rounds := flag.Int("rounds", 6, "rounds of each contest, after one to warm up")
	messages := flag.Int("messages", 640_000, "messages of 1 KB in the topic; a multiple of its 8 partitions")
	child := flag.String("memory", "", "internal: be the consumer whose memory is measured")
	profile := flag.String("cpuprofile", "", "write a CPU profile of all sides to this file")
	flag.Parse()
	if *child != "" {
		os.Exit(runChild(*child, *messages, flag.Args()))
	}
	os.Exit(servers.Run("bench-kafka", func(ctx context.Context, p *servers.Program) error {
		if err := p.Profile(*profile); err != nil {
			return err
		}
		return run(ctx, p, *rounds, *messages)
	}))
}

func run(ctx context.Context, p *servers.Program, rounds, messages int) error {
	if messages <= 0 || messages%partitions != 0 {
		return fmt.Errorf("-messages is %d: it must be a multiple of the topic's %d partitions", messages, partitions)
	}
	database, err := p.Postgres(ctx)
	if err != nil {
		return err
	}
	addr, err := p.Kafka() //nolint:contextcheck // the stack's servers outlive any context
	if err != nil {
		return err
	}
	pool, err := dbpool.Open(ctx, database, partitions, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := tables.Create(ctx, pool, orders); err != nil {
		return err
	}
	client := &kafka.Client{Addr: kafka.TCP(addr), Timeout: 10 * time.Second}
	topic := stack.Topic(p, addr, partitions) //nolint:contextcheck // the stack's servers outlive any context
	b := &bench{addr: addr, topic: topic, client: client, database: database, pool: pool, messages: messages}
	if err := fill(ctx, client, topic, messages); err != nil {
		return err
	}

	fmt.Printf("Apache Kafka with %d messages of %d bytes in %d partitions, not compressed; PostgreSQL with fsync=on, synchronous_commit=on;\n"+
		"%d rounds a side, order swapped every round; all sides read committed records as one member of a new group.\n",
		messages, payloadBytes, partitions, rounds)

	var figures figure.Figures
	reading, err := contest.Run(ctx, rounds, b.reading()...)
	if err != nil {
		return err
	}
	printTable(os.Stdout, "reading alone", reading)
	figures.Ratio("kafka-read", reading.Ratio(readOurs, readTheirs), targetReading)
	figures.OwnRatio("kafka-read-same-fetch", reading.Ratio(readOurs, readSame), targetReading)

	handling, err := contest.Run(ctx, rounds, b.handling()...)
	if err != nil {
		return err
	}
	printTable(os.Stdout, "each message once, in PostgreSQL", handling)
	figures.Ratio("kafka-inbox", handling.Ratio(inboxOurs, inboxTheirs), targetInbox)
	figures.OwnRatio("kafka-inbox-vs-interval", handling.Ratio(inboxOurs, inboxInterval), targetInbox)
	figures.OwnRatio("kafka-inbox-vs-batch", handling.Ratio(inboxOurs, inboxBatch), targetSameBatch)
	figures.OwnRatio("kafka-inbox-vs-batch-interval", handling.Ratio(inboxOurs, inboxBest), targetSameBatch)

	for _, m := range []struct{ name, child string }{{"kafka-rss", childRead}, {"kafka-rss-inbox", childInbox}} {
		peak, err := b.memory(ctx, m.child)
		if err != nil {
			return err
		}
		figures.AtMost(m.name, peak, targetMemory)
	}
	return figures.Print(os.Stdout)
}
