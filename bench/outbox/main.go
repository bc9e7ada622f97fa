// Command outbox measures the outbox: reading the log, publishing to Kafka,
// latency, the cost of Publish and of doing nothing.
//
//	go run ./bench/outbox [-rounds 6] [-events 100000]
//
// It starts a PostgreSQL of its own with fsync and synchronous_commit on, and an
// Apache Kafka. What is compared with what stands in bench/README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/store/postgres"
)

type settings struct {
	rounds  int
	events  int
	payload int
	headers int
	latency time.Duration
	idle    time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 6, "rounds of each contest, after one to warm up")
	flag.IntVar(&s.events, "events", 100_000, "events in the log")
	flag.IntVar(&s.payload, "payload", 256, "bytes of payload of an event")
	flag.IntVar(&s.headers, "headers", 0, "headers of an event, such as those of a trace context; at most 8")
	flag.DurationVar(&s.latency, "latency", 20*time.Second, "how long latency is measured")
	flag.DurationVar(&s.idle, "idle", 20*time.Second, "how long an idle relay is watched")
	only := flag.String("only", "", "measure one thing: idle, publish, latency, read or kafka")
	profile := flag.String("cpuprofile", "", "write a CPU profile of all sides to this file")
	flag.Parse()
	os.Exit(servers.Run("bench-outbox", func(ctx context.Context, p *servers.Program) error {
		if err := p.Profile(*profile); err != nil {
			return err
		}
		return run(ctx, p, s, *only)
	}))
}

const (
	targetSkipLocked = 2   // against SELECT … FOR UPDATE SKIP LOCKED and DELETE
	targetWatermill  = 10  // against Watermill's forwarder
	targetHeld       = 0.9 // with a snapshot held open against without
	targetKafka      = 0.8 // against kafka-go producing the same bytes
	targetPublisher  = 1   // of the publisher alone, both out of memory
	targetP50        = 10  // ms from commit to the broker's acknowledgement
	targetP99        = 50
	targetPublish    = 15 // % on top of a business transaction
	targetIdle       = 2  // statements a second
)

const lanes = 16

func run(ctx context.Context, p *servers.Program, s settings, only string) error {
	if s.events <= 0 || s.payload < 0 || s.headers < 0 || s.headers > len(headerNames) {
		return fmt.Errorf("-events is %d, -payload %d, -headers %d: they must be at least 1, 0 and 0, and there are %d headers",
			s.events, s.payload, s.headers, len(headerNames))
	}
	url, err := p.Postgres(ctx)
	if err != nil {
		return err
	}
	addr, err := p.Kafka() //nolint:contextcheck // the stack's servers outlive any context
	if err != nil {
		return err
	}
	pool, err := dbpool.Open(ctx, url, 4, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.New(pool).Migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	b := &bench{settings: s, url: url, addr: addr, pool: pool, noise: noise(s.payload)}

	fmt.Printf("PostgreSQL with fsync=on, synchronous_commit=on; Apache Kafka on one node, acks=all;\n"+
		"%d events with %d bytes of payload, %d headers and 1,000 keys; %d rounds a side, order swapped every round.\n",
		s.events, s.payload, s.headers, s.rounds)

	var figures figure.Figures
	for _, m := range []struct {
		name    string
		measure func(context.Context, *servers.Program, *figure.Figures) error
	}{{"idle", b.idleCost}, {"publish", b.publishCost}, {"latency", b.latencies}, {"read", b.readingLog}, {"kafka", b.producing}} {
		if only != "" && only != m.name {
			continue
		}
		if err := m.measure(ctx, p, &figures); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return figures.Print(os.Stdout)
}

func printTable(title string, result contest.Result) {
	base := result.Sides()[0]
	fmt.Printf("\n%s\n%-46s %10s  %-24s %10s %10s %10s\n", title, "", "events/s", "ratio (min … max)", "CPU µs/ev", "allocs/ev", "heap B/ev")
	for _, name := range result.Sides() {
		ratio := result.Ratio(name, base)
		spent := result.PerMessage(name)
		fmt.Printf("%-46s %10.0f  %-24s %10.1f %10.1f %10.0f\n", name, result.Rate(name).Median,
			fmt.Sprintf("%5.2f (%.2f … %.2f)", ratio.Median, ratio.Min, ratio.Max),
			float64(spent.CPU)/float64(time.Microsecond), spent.Allocs, spent.Bytes)
	}
}
