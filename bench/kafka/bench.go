package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/handwritten"
	"github.com/onceward/onceward/bench/internal/tables"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
)

// Names of the sides.
const (
	readOurs      = "our consumer without work"
	readTheirs    = "kafka.Reader without work"
	readSame      = "kafka.Reader with our size of a fetch"
	inboxOurs     = "our consumer with the inbox"
	inboxTheirs   = "kafka.Reader by hand"
	inboxInterval = "kafka.Reader by hand with CommitInterval"
	inboxBatch    = "kafka.Reader by hand in batches of 100"
	inboxBest     = "by hand in batches, with CommitInterval"
)

const (
	// readLead is the part of the topic that is read before the clock starts.
	readLead = 1. / 10
	// handleLead is a batch for each partition.
	handleLead = partitions * batchSize
	// readLimit ends the reading of a topic that takes too long.
	readLimit = 10 * time.Second
	// handleLimit is how long a side handles messages in a round; the topic is
	// longer than that.
	handleLimit = 3 * time.Second
)

// batchSize is how many messages at most share a transaction, ours and by hand.
const batchSize = 100

// orders are the tables of all sides, which work one after the other.
var orders = tables.Of("orders")

// bench is what all sides work on.
type bench struct {
	addr, topic string
	client      *kafka.Client
	database    string // URL
	pool        *pgxpool.Pool
	messages    int
}

func (b *bench) reading() []contest.Side {
	lead := int(readLead * float64(b.messages))
	return []contest.Side{
		b.side(readOurs, lead, readLimit, func(ctx context.Context, group string, l *lap) error {
			return consume(ctx, b.addr, b.topic, group, noWork{}, l)
		}),
		b.side(readTheirs, lead, readLimit, func(ctx context.Context, group string, l *lap) error {
			return readWithReader(ctx, b.addr, b.topic, group, readerMaxBytes, l)
		}),
		b.side(readSame, lead, readLimit, func(ctx context.Context, group string, l *lap) error {
			return readWithReader(ctx, b.addr, b.topic, group, sameMaxBytes, l)
		}),
	}
}

func (b *bench) handling() []contest.Side {
	byHand := func(interval time.Duration, batch int) func(context.Context, string, *lap) error {
		return func(ctx context.Context, group string, l *lap) error {
			in := handwritten.Inbox{Pool: b.pool, Scope: group + "/" + b.topic, Records: orders.Records, Effects: orders.Effects}
			return handleWithReader(ctx, b.addr, b.topic, group, interval, batch, in, l)
		}
	}
	return []contest.Side{
		b.withEffects(b.side(inboxOurs, handleLead, handleLimit, func(ctx context.Context, group string, l *lap) error {
			in := newInbox(b.pool, group)
			if err := consume(ctx, b.addr, b.topic, group, in, l); err != nil {
				return err
			}
			if again := in.Stats().Retries; again > 0 {
				return fmt.Errorf("%d transactions were run again", again)
			}
			return nil
		})),
		b.withEffects(b.side(inboxTheirs, handleLead, handleLimit, byHand(0, 1))),
		b.withEffects(b.side(inboxInterval, handleLead, handleLimit, byHand(readerCommitInterval, 1))),
		b.withEffects(b.side(inboxBatch, handleLead, handleLimit, byHand(0, batchSize))),
		b.withEffects(b.side(inboxBest, handleLead, handleLimit, byHand(readerCommitInterval, batchSize))),
	}
}

func newInbox(pool *pgxpool.Pool, consumer string) *inbox.Inbox[pgx.Tx] {
	return inbox.New(postgres.New(pool, postgres.WithSchema(orders.Schema)), consumer, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, orders.Effects.Insert, m.ID, int64(len(m.Payload)))
		return err
	}, inbox.Batch(batchSize))
}

// side makes a contestant of a consumer. Afterwards its group must have
// committed at least the messages that were done when the lap ended.
func (b *bench) side(name string, lead int, limit time.Duration, consumer func(ctx context.Context, group string, l *lap) error) contest.Side {
	return contest.Side{Name: name, Run: func(ctx context.Context, _ int) (contest.Sample, error) {
		group := newGroup()
		l := newLap(lead, b.messages, limit)
		sample, err := contest.Measure(func() (int, error) {
			err := consumer(ctx, group, l)
			return int(l.done.Load()), err
		})
		if err != nil {
			return sample, err
		}
		// Costs are those of all the consumer has done, the rate is that of the lap.
		share := float64(l.messages) / float64(sample.Messages)
		sample.CPU = time.Duration(float64(sample.CPU) * share)
		sample.Allocs = uint64(float64(sample.Allocs) * share)
		sample.Bytes = uint64(float64(sample.Bytes) * share)
		sample.Messages, sample.Elapsed = l.messages, l.elapsed
		settled, err := committed(ctx, b.client, b.topic, group)
		if err == nil && settled < l.total {
			err = fmt.Errorf("offsets of %d messages were committed, want at least %d", settled, l.total)
		}
		return sample, err
	}}
}

func newGroup() string { return fmt.Sprintf("bench-%d", time.Now().UnixNano()) }

// withEffects empties the tables before a round and counts effects after it.
func (b *bench) withEffects(side contest.Side) contest.Side {
	run := side.Run
	side.Run = func(ctx context.Context, round int) (contest.Sample, error) {
		if err := tables.Reset(ctx, b.pool, tables.Older{}, orders); err != nil {
			return contest.Sample{}, err
		}
		sample, err := run(ctx, round)
		if err != nil {
			return sample, err
		}
		rows, err := orders.Effects.Count(ctx, b.pool)
		if err == nil && rows < sample.Messages {
			err = fmt.Errorf("%d messages had their effect, want at least %d", rows, sample.Messages)
		}
		return sample, err
	}
	return side
}

// Consumers whose memory is measured.
const (
	childRead  = "read"
	childInbox = "inbox"
)

// memoryRuns is how many consumers are measured; the largest one counts.
const memoryRuns = 3

func (b *bench) memory(ctx context.Context, child string) (megabytes float64, err error) {
	for range memoryRuns {
		if child == childInbox {
			if err := tables.Reset(ctx, b.pool, tables.Older{}, orders); err != nil {
				return 0, err
			}
		}
		peak, err := peakMemory(ctx, "-memory", child, "-messages", strconv.Itoa(b.messages), b.addr, b.topic, b.database)
		if err != nil {
			return 0, err
		}
		megabytes = max(megabytes, peak)
	}
	return megabytes, nil
}

func printTable(w io.Writer, title string, result contest.Result) {
	base := result.Sides()[1]
	fmt.Fprintf(w, "\n%s\n%-42s %9s  %-24s %10s %10s %11s\n", title, "", "msg/s", "ratio (min … max)", "CPU µs/msg", "allocs/msg", "heap B/msg")
	for _, name := range result.Sides() {
		ratio := result.Ratio(name, base)
		spent := result.PerMessage(name)
		fmt.Fprintf(w, "%-42s %9.0f  %-24s %10.1f %10.1f %11.0f\n", name, result.Rate(name).Median,
			fmt.Sprintf("%5.2f (%.2f … %.2f)", ratio.Median, ratio.Min, ratio.Max),
			float64(spent.CPU)/float64(time.Microsecond), spent.Allocs, spent.Bytes)
	}
}
