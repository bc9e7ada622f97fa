package main

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/bench/internal/wire"
)

// settling is how long a relay has to register, to take its lanes and to find out
// that there is nothing to do.
const settling = 3 * time.Second

// idleCost counts the statements of a relay that has nothing to do, on the wire.
func (b *bench) idleCost(ctx context.Context, _ *servers.Program, figures *figure.Figures) error {
	var meter wire.Meter
	pool, err := dbpool.Open(ctx, b.url, 2, &meter)
	if err != nil {
		return err
	}
	defer pool.Close()
	relayCtx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- b.relay(relayCtx, pool, nobody{}) }()
	var before, after wire.Count
	for _, step := range []struct {
		wait  time.Duration
		count *wire.Count
	}{{settling, &before}, {b.idle, &after}} {
		select {
		case <-time.After(step.wait):
			*step.count = meter.Count()
		case <-ctx.Done():
		}
	}
	stop()
	if err := <-ended; err != nil {
		return err
	}
	spent := after.Minus(before)
	fmt.Printf("\nidle, %d lanes: %d statements and %d round trips in %v\n", lanes, spent.Statements, spent.RoundTrips, b.idle)
	figures.AtMost("outbox-idle-statements", float64(spent.Statements)/b.idle.Seconds(), targetIdle)
	return b.passed(ctx)
}
