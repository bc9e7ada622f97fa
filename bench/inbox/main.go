// Command inbox measures the inbox against the same work written by hand.
//
//	go run ./bench/inbox [-rounds 9] [-round 300ms] [-records 0]
//
// It starts a PostgreSQL of its own with fsync and synchronous_commit on. What is
// compared with what stands in bench/README.md.
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
	"github.com/onceward/onceward/bench/internal/tables"
)

type settings struct {
	rounds    int
	roundTime time.Duration
	records   int
}

func main() {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 10, "rounds of each contest, after one to warm up")
	flag.DurationVar(&s.roundTime, "round", 400*time.Millisecond, "how long one side works in one round")
	flag.IntVar(&s.records, "records", 0, "records in each side's table, and in the scope measured, when a contest begins")
	profile := flag.String("cpuprofile", "", "write a CPU profile of all sides to this file")
	flag.Parse()
	os.Exit(servers.Run("bench-inbox", func(ctx context.Context, p *servers.Program) error {
		if err := p.Profile(*profile); err != nil {
			return err
		}
		return run(ctx, p, s)
	}))
}

// Targets. The ratios are to the hand-written inbox, one by one, with as many connections.
const (
	targetOneAlone = 1.3  // at one connection: round trips saved
	targetOneBusy  = 0.95 // at eight: the server is the limit
	targetBatch    = 4
	targetBulk     = 12

	// Against the same batch written by hand there is nothing to win.
	targetSameBatch = 0.9
	// A message costs at most so many times the allocations of the same work by hand.
	targetAllocs = 2
)

// variant is a kind of deliveries, and who competes on it.
type variant struct {
	title, suffix string
	deliveries    stream
	sides         []side
}

func run(ctx context.Context, p *servers.Program, s settings) error {
	url, err := p.Postgres(ctx)
	if err != nil {
		return err
	}
	admin, err := dbpool.Open(ctx, url, 1, nil)
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := tables.Create(ctx, admin, tablesOf(sides)...); err != nil {
		return err
	}

	fmt.Printf("PostgreSQL with fsync=on, synchronous_commit=on; %d rounds of %v a side, order swapped every round;\n"+
		"payload %d bytes; every message is claimed and makes one row; %d older records in each table.\n",
		s.rounds, s.roundTime, payloadBytes, s.records)

	costs := make(map[string]cost)
	for _, side := range sides {
		if costs[side.name], err = wireCost(ctx, url, side); err != nil {
			return err
		}
	}

	now := time.Now()
	oneByHand := []side{handOne, ourOne, ourBatch, ourBulk}
	variants := []variant{
		{"time-ordered ids", "", stream{ids: timeOrdered, start: now}, sides},
		{"random ids", "-random", stream{ids: random, start: now}, oneByHand},
		{"every batch delivered twice", "-duplicates", stream{ids: timeOrdered, redelivered: true, start: now}, oneByHand},
	}
	var figures figure.Figures
	for _, v := range variants {
		for _, connections := range []int{1, 8} {
			older := tables.Older{Count: s.records, Scope: scope, Key: v.deliveries.older()}
			if err := tables.Reset(ctx, admin, older, tablesOf(sides)...); err != nil {
				return err
			}
			c := &bout{url: url, settings: s, connections: connections, sides: v.sides, deliveries: v.deliveries}
			result, err := c.run(ctx)
			if err != nil {
				return err
			}
			for _, e := range c.entrants {
				if err := e.check(ctx, admin); err != nil {
					return err
				}
			}
			printTable(os.Stdout, v.title, connections, result, costs)
			addFigures(&figures, v.suffix, connections, result)
			if len(v.sides) == len(sides) {
				addWeight(&figures, connections, result, costs)
			}
		}
	}
	return figures.Print(os.Stdout)
}

func tablesOf(sides []side) []tables.Tables {
	own := make([]tables.Tables, len(sides))
	for i, s := range sides {
		own[i] = s.tables
	}
	return own
}

// bout is one contest on fresh tables.
type bout struct {
	settings

	url         string
	connections int
	sides       []side
	deliveries  stream
	entrants    []*entrant
}

func (b *bout) run(ctx context.Context) (contest.Result, error) {
	contestSides := make([]contest.Side, 0, len(b.sides))
	for _, s := range b.sides {
		pool, err := dbpool.Open(ctx, b.url, b.connections, nil)
		if err != nil {
			return contest.Result{}, err
		}
		defer pool.Close()
		e := &entrant{
			side: s, work: s.open(pool, s),
			connections: b.connections, deliveries: b.deliveries, roundTime: b.roundTime,
		}
		b.entrants = append(b.entrants, e)
		contestSides = append(contestSides, contest.Side{Name: s.name, Run: e.round})
	}
	return contest.Run(ctx, b.rounds, contestSides...)
}
