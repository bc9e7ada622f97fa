package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
	"github.com/onceward/onceward/bench/internal/figure"
	"github.com/onceward/onceward/bench/internal/servers"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

const (
	businessAlone  = "business transaction"
	businessEvent  = "the same and one event"
	businessByHand = "the same and an INSERT by hand"
	transactions   = 100
)

// publishCost compares a business transaction (read an account, book an entry,
// move the balance, COMMIT) with the same one that also publishes an event.
func (b *bench) publishCost(ctx context.Context, _ *servers.Program, figures *figure.Figures) error {
	err := b.exec(ctx,
		`CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL)`,
		`INSERT INTO account SELECT n, 0 FROM generate_series(0, 999) n`,
		`CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account_id bigint NOT NULL, amount bigint NOT NULL)`,
		`CREATE TABLE event_by_hand (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key bytea, payload bytea)`)
	if err != nil {
		return err
	}
	pool, err := dbpool.Open(ctx, b.url, 1, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	events := outbox.New(postgres.New(pool))
	side := func(name string, publish func(ctx context.Context, tx pgx.Tx, m outbox.Message) error) contest.Side {
		return contest.Side{Name: name, Run: func(ctx context.Context, round int) (contest.Sample, error) {
			return contest.Measure(func() (int, error) {
				for n := range transactions {
					if err := b.business(ctx, pool, round*transactions+n, publish); err != nil {
						return n, err
					}
				}
				return transactions, nil
			})
		}}
	}
	// Many short rounds: the disk's flushes come and go within a second.
	rounds := 20 * b.rounds
	result, err := contest.Run(ctx, rounds,
		side(businessAlone, func(context.Context, pgx.Tx, outbox.Message) error { return nil }),
		side(businessEvent, func(ctx context.Context, tx pgx.Tx, m outbox.Message) error { return events.Publish(ctx, tx, m) }),
		side(businessByHand, func(ctx context.Context, tx pgx.Tx, m outbox.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO event_by_hand (topic, key, payload) VALUES ($1, $2, $3)`, m.Topic, m.Key, m.Payload)
			return err
		}),
	)
	if err != nil {
		return err
	}
	printTable("a business transaction of three statements, one connection", result)
	slower := result.Ratio(businessAlone, businessEvent)
	figures.AtMost("outbox-publish-percent", 100*(slower.Median-1), targetPublish)
	return nil
}

func (b *bench) business(ctx context.Context, pool *pgxpool.Pool, n int, publish func(ctx context.Context, tx pgx.Tx, m outbox.Message) error) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var balance int64
		if err := tx.QueryRow(ctx, `SELECT balance FROM account WHERE id = $1 FOR UPDATE`, n%1000).Scan(&balance); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO entry (account_id, amount) VALUES ($1, $2)`, n%1000, n); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE account SET balance = $2 WHERE id = $1`, n%1000, balance+int64(n)); err != nil {
			return err
		}
		return publish(ctx, tx, b.event(n, "publish-cost"))
	})
	if err != nil {
		return fmt.Errorf("business transaction: %w", err)
	}
	return nil
}
