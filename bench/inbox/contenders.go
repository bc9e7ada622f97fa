package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/bench/internal/handwritten"
	"github.com/onceward/onceward/bench/internal/tables"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// batchSize is how many messages share a transaction where any do.
const batchSize = 100

// A worker handles the messages one connection is given. If it had to try something
// again it fails: a lap with a retry measures something else.
type worker func(ctx context.Context, messages []inbox.Message) error

// source is the topic that all messages come from.
const source = "orders"

// side is one competitor: a way to handle messages once.
type side struct {
	name string
	// key names the side's consumer and its tables.
	key    string
	tables tables.Tables
	open   func(*pgxpool.Pool, side) worker
	// warmUp is how many messages each connection handles in the warm-up,
	// which tells how many fill a round.
	warmUp int
}

func newSide(name, key string, warmUp int, open func(*pgxpool.Pool, side) worker) side {
	return side{name: name, key: key, tables: tables.Of(key), warmUp: warmUp, open: open}
}

// All sides are measured against the first.
var (
	handOne   = newSide("by hand one by one", "hand_one", 200, openHandOne)
	ourOne    = newSide("inbox one by one", "our_one", 200, openOurOne)
	handBatch = newSide("by hand in batches", "hand_batch", 2000, openHandBatch)
	ourBatch  = newSide("inbox in batches", "our_batch", 2000, openOurBatch)
	handBulk  = newSide("by hand in bulk", "hand_bulk", 4000, openHandBulk)
	ourBulk   = newSide("inbox in bulk", "our_bulk", 4000, openOurBulk)

	sides = []side{handOne, ourOne, handBatch, ourBatch, handBulk, ourBulk}
)

// scope is what the library makes of a consumer and a source.
func scope(own tables.Tables) string { return own.Schema + "/" + source }

func handInbox(pool *pgxpool.Pool, s side) handwritten.Inbox {
	return handwritten.Inbox{Pool: pool, Scope: scope(s.tables), Records: s.tables.Records, Effects: s.tables.Effects}
}

func order(m inbox.Message) handwritten.Order {
	return handwritten.Order{ID: m.ID, Amount: int64(len(m.Payload))}
}

func openHandOne(pool *pgxpool.Pool, s side) worker {
	in := handInbox(pool, s)
	return func(ctx context.Context, messages []inbox.Message) error {
		for _, m := range messages {
			if err := in.One(ctx, order(m)); err != nil {
				return err
			}
		}
		return nil
	}
}

func openHandBatch(pool *pgxpool.Pool, s side) worker {
	return handBatches(handInbox(pool, s).Batch)
}

func openHandBulk(pool *pgxpool.Pool, s side) worker {
	return handBatches(handInbox(pool, s).Bulk)
}

func handBatches(handle func(context.Context, []handwritten.Order) error) worker {
	return inBatches(func(ctx context.Context, messages []inbox.Message) error {
		orders := make([]handwritten.Order, len(messages))
		for i, m := range messages {
			orders[i] = order(m)
		}
		return handle(ctx, orders)
	})
}

func openOurOne(pool *pgxpool.Pool, s side) worker {
	in := inbox.New(store(pool, s), s.key, handler(s))
	return processWith(in) // all at once, as adapters do; each still has its own transaction
}

func openOurBatch(pool *pgxpool.Pool, s side) worker {
	in := inbox.New(store(pool, s), s.key, handler(s), inbox.Batch(batchSize))
	return inBatches(processWith(in))
}

func openOurBulk(pool *pgxpool.Pool, s side) worker {
	in := inbox.NewBulk(store(pool, s), s.key, func(ctx context.Context, tx pgx.Tx, messages []inbox.Message) error {
		ids := make([]string, len(messages))
		amounts := make([]int64, len(messages))
		for i, m := range messages {
			ids[i], amounts[i] = m.ID, int64(len(m.Payload))
		}
		_, err := tx.Exec(ctx, s.tables.Effects.InsertAll, ids, amounts)
		return err
	}, inbox.Batch(batchSize))
	return inBatches(processWith(in))
}

func handler(s side) inbox.Handler[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, s.tables.Effects.Insert, m.ID, int64(len(m.Payload)))
		return err
	}
}

func store(pool *pgxpool.Pool, s side) *postgres.Store {
	return postgres.New(pool, postgres.WithSchema(s.tables.Schema))
}

// processWith does what an adapter does with the results: everything must be settled.
func processWith(in *inbox.Inbox[pgx.Tx]) worker {
	return func(ctx context.Context, messages []inbox.Message) error {
		results, err := in.Process(ctx, messages)
		if err != nil {
			return err
		}
		for i, r := range results {
			if r.Outcome != inbox.Processed && r.Outcome != inbox.Duplicate {
				return fmt.Errorf("message at %s was %v: %w", messages[i].Position, r.Outcome, r.Err)
			}
		}
		if again := in.Stats().Retries; again > 0 {
			return fmt.Errorf("%d transactions were run again", again)
		}
		return nil
	}
}

func inBatches(handle worker) worker {
	return func(ctx context.Context, messages []inbox.Message) error {
		for start := 0; start < len(messages); start += batchSize {
			if err := handle(ctx, messages[start:min(start+batchSize, len(messages))]); err != nil {
				return err
			}
		}
		return nil
	}
}
