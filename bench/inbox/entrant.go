package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/wire"
)

// entrant is a side in one contest.
type entrant struct {
	side

	work        worker
	connections int
	deliveries  stream
	roundTime   time.Duration

	// perRound is how many messages fill a round, found by the warm-up.
	perRound int
	// orders counts the different messages handled so far.
	orders int
}

// round is the contest.Side of an entrant: each connection handles its share.
func (e *entrant) round(ctx context.Context, round int) (contest.Sample, error) {
	count := e.perRound
	if round == 0 {
		count = e.warmUp * e.connections
	}
	deliveries := e.deliveries
	deliveries.round = round
	shares := deliveries.share(count, e.connections)
	sample, err := contest.Measure(func() (int, error) {
		group, ctx := errgroup.WithContext(ctx)
		for _, share := range shares {
			group.Go(func() error { return e.work(ctx, share) })
		}
		return count, group.Wait()
	})
	if err != nil {
		return sample, err
	}
	e.orders += distinct(shares)
	if round == 0 {
		step := e.deliveries.step() * e.connections
		e.perRound = max(1, int(sample.Rate()*e.roundTime.Seconds())/step) * step
	}
	return sample, nil
}

// check proves that the side did its work: each message has one effect.
func (e *entrant) check(ctx context.Context, pool *pgxpool.Pool) error {
	effects, err := e.tables.Effects.Count(ctx, pool)
	if err == nil && effects != e.orders {
		err = fmt.Errorf("%d of %d messages had their effect", effects, e.orders)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	return nil
}

// cost is what one message costs on the wire.
type cost struct{ statements, roundTrips, bytes float64 }

// wireCost handles messages on one counted connection, apart from the contest.
func wireCost(ctx context.Context, url string, s side) (cost, error) {
	const messages = 10 * batchSize
	var meter wire.Meter
	pool, err := dbpool.Open(ctx, url, 1, &meter)
	if err != nil {
		return cost{}, err
	}
	defer pool.Close()
	work := s.open(pool, s)
	share := stream{ids: timeOrdered, start: time.Now()}.share(2*messages, 1)[0]
	// The first half prepares the statements.
	if err := work(ctx, share[:messages]); err != nil {
		return cost{}, fmt.Errorf("%s: %w", s.name, err)
	}
	before := meter.Count()
	if err := work(ctx, share[messages:]); err != nil {
		return cost{}, fmt.Errorf("%s: %w", s.name, err)
	}
	spent := meter.Count().Minus(before)
	return cost{
		statements: float64(spent.Statements) / messages,
		roundTrips: float64(spent.RoundTrips) / messages,
		bytes:      float64(spent.Written+spent.Read) / messages,
	}, nil
}
