package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
)

const (
	readOurs       = "our relay"
	readOursHeld   = "our relay, a snapshot held open"
	readSkip       = "SKIP LOCKED and DELETE"
	readSkipHeld   = "SKIP LOCKED and DELETE, a snapshot held open"
	readWatermill  = "Watermill's forwarder"
	watermillShare = 20 // It gets a share of the events: it would take a minute otherwise.
)

// readingLog compares reading and acknowledging, to publishers that do nothing.
func (b *bench) readingLog(ctx context.Context, _ *servers.Program, figures *figure.Figures) error {
	if err := b.fillLog(ctx, topic, b.events); err != nil {
		return err
	}
	if err := b.createJobs(ctx); err != nil {
		return err
	}
	forwarder, err := b.newForwarder(ctx, b.events/watermillShare)
	if err != nil {
		return err
	}
	result, err := contest.Run(ctx, b.rounds,
		contest.Side{Name: readOurs, Run: b.readOurs(false)},
		contest.Side{Name: readOursHeld, Run: b.readOurs(true)},
		contest.Side{Name: readSkip, Run: b.readJobs(false)},
		contest.Side{Name: readSkipHeld, Run: b.readJobs(true)},
		contest.Side{Name: readWatermill, Run: forwarder.round},
	)
	if err != nil {
		return err
	}
	printTable("reading and acknowledging, nothing published", result)
	figures.Ratio("outbox-read", result.Ratio(readOurs, readSkip), targetSkipLocked)
	figures.Ratio("outbox-read-vs-watermill", result.Ratio(readOurs, readWatermill), targetWatermill)
	figures.Ratio("outbox-read-held", result.Ratio(readOursHeld, readOurs), targetHeld)
	figures.OwnRatio("outbox-read-both-held", result.Ratio(readOursHeld, readSkipHeld), targetSkipLocked)
	return nil
}

// readOurs lets a new relay read the whole log.
func (b *bench) readOurs(held bool) func(context.Context, int) (contest.Sample, error) {
	return func(ctx context.Context, _ int) (contest.Sample, error) {
		release, err := b.hold(ctx, held)
		if err != nil {
			return contest.Sample{}, err
		}
		defer release()
		return b.publishLog(ctx, nobody{})
	}
}

// hold opens a transaction that holds a snapshot, from before the work begins.
func (b *bench) hold(ctx context.Context, held bool) (release func(), err error) {
	if !held {
		return func() {}, nil
	}
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return nil, fmt.Errorf("connect to hold a snapshot: %w", err)
	}
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = tx.Exec(ctx, `SELECT count(*) FROM onceward.relay`)
	}
	if err != nil {
		release()
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return release, nil
}
