package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/inbox"
)

// childDeadline ends a consumer whose parent was killed.
const childDeadline = time.Minute

// memoryLimit is how long it consumes at most.
const memoryLimit = 5 * time.Second

// runChild consumes messages as fast as it can and prints its peak memory.
func runChild(kind string, messages int, args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), childDeadline)
	defer cancel()
	if err := consumeAndPrint(ctx, kind, messages, args); err != nil {
		fmt.Fprintln(os.Stderr, "bench-kafka:", err)
		return 1
	}
	return 0
}

func consumeAndPrint(ctx context.Context, kind string, messages int, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("-memory is for this program itself: it needs broker, topic and database, got %d arguments", len(args))
	}
	addr, topic, database := args[0], args[1], args[2]
	group := newGroup()
	var p inbox.Processor = noWork{}
	if kind == childInbox {
		pool, err := dbpool.Open(ctx, database, partitions, nil)
		if err != nil {
			return err
		}
		defer pool.Close()
		p = newInbox(pool, group)
	}
	if err := consume(ctx, addr, topic, group, p, newLap(1, messages, memoryLimit)); err != nil {
		return err
	}
	return printPeakMemory()
}
