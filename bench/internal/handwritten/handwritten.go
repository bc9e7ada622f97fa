// Package handwritten is the competitor: an inbox as an engineer with pgx
// writes it, without a library. Claim first, in the transaction of the work.
package handwritten

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/tables"
)

// retention is what the library writes with its default of 14 days: a day more.
const retention = 15 * 24 * time.Hour

// Inbox handles orders once. Scope is what their ids are unique within.
type Inbox struct {
	Pool    *pgxpool.Pool
	Scope   string
	Records tables.Records
	Effects tables.Effects
}

// Order is a message as the handler needs it.
type Order struct {
	ID     string
	Amount int64
}

// One handles one order in one transaction: BEGIN, claim, insert, COMMIT.
func (in Inbox) One(ctx context.Context, order Order) error {
	tx, err := in.Pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it has nothing to do
	tag, err := tx.Exec(ctx, in.Records.Claim, in.Scope, order.ID, retention)
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, in.Effects.Insert, order.ID, order.Amount); err != nil {
		return fmt.Errorf("handle: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Batch handles orders in one transaction: one claim, then one insert for each new one.
func (in Inbox) Batch(ctx context.Context, orders []Order) error {
	return pgx.BeginFunc(ctx, in.Pool, func(tx pgx.Tx) error {
		fresh, err := in.claim(ctx, tx, orders)
		if err != nil {
			return err
		}
		for _, order := range fresh {
			if _, err := tx.Exec(ctx, in.Effects.Insert, order.ID, order.Amount); err != nil {
				return fmt.Errorf("handle: %w", err)
			}
		}
		return nil
	})
}

// Bulk handles orders in one transaction: one claim, then one insert for all new ones.
func (in Inbox) Bulk(ctx context.Context, orders []Order) error {
	return pgx.BeginFunc(ctx, in.Pool, func(tx pgx.Tx) error {
		fresh, err := in.claim(ctx, tx, orders)
		if err != nil || len(fresh) == 0 {
			return err
		}
		ids := make([]string, len(fresh))
		amounts := make([]int64, len(fresh))
		for i, order := range fresh {
			ids[i], amounts[i] = order.ID, order.Amount
		}
		if _, err := tx.Exec(ctx, in.Effects.InsertAll, ids, amounts); err != nil {
			return fmt.Errorf("handle: %w", err)
		}
		return nil
	})
}

// claim returns the orders that are new, in the order given.
func (in Inbox) claim(ctx context.Context, tx pgx.Tx, orders []Order) ([]Order, error) {
	ids := make([]string, len(orders))
	for i, order := range orders {
		ids[i] = order.ID
	}
	rows, err := tx.Query(ctx, in.Records.ClaimAll, in.Scope, ids, retention)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	won, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	unclaimed := make(map[string]bool, len(won))
	for _, id := range won {
		unclaimed[id] = true
	}
	fresh := make([]Order, 0, len(won))
	for _, order := range orders {
		if unclaimed[order.ID] {
			fresh = append(fresh, order)
			// A second copy in the same batch is a duplicate.
			delete(unclaimed, order.ID)
		}
	}
	return fresh, nil
}
