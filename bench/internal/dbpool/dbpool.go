// Package dbpool opens connection pools for benchmarks.
package dbpool

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/wire"
)

// Open opens all connections at once: a contest is not about dialling. With a
// meter they are counted; nil: not.
func Open(ctx context.Context, url string, connections int, meter *wire.Meter) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse the server's URL: %w", err)
	}
	config.MaxConns = int32(connections)
	if meter != nil {
		config.ConnConfig.DialFunc = meter.Dial(config.ConnConfig.DialFunc)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open a pool: %w", err)
	}
	held := make([]*pgxpool.Conn, 0, connections)
	for range connections {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		conn.Release()
	}
	if len(held) < connections {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %d of %d connections", len(held), connections)
	}
	return pool, nil
}
