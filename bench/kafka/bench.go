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
	byHand := func(interval time.Duration, batch int) consumer {
		return func(ctx context.Context, group string, l *lap) error {
			in := handwritten.Inbox{Pool: b.pool, Scope: group + "/" + b.topic, Records: orders.Records, Effects: orders.Effects}
			return handleWithReader(ctx, b.addr, b.topic, group, interval, batch, in, l)
		}
	}
	return []contest.Side{
		b.withEffects(inboxOurs, func(ctx context.Context, group string, l *lap) error {
			in := newInbox(b.pool, group)
			if err := consume(ctx, b.addr, b.topic, group, in, l); err != nil {
				return err
			}
			if again := in.Stats().Retries; again > 0 {
				return fmt.Errorf("%d transactions were run again", again)
			}
			return nil
		}),
		b.withEffects(inboxTheirs, byHand(0, 1)),
		b.withEffects(inboxInterval, byHand(readerCommitInterval, 1)),
		b.withEffects(inboxBatch, byHand(0, batchSize)),
		b.withEffects(inboxBest, byHand(readerCommitInterval, batchSize)),
	}
}

func newInbox(pool *pgxpool.Pool, consumer string) *inbox.Inbox[pgx.Tx] {
	return inbox.New(postgres.New(pool, postgres.WithSchema(orders.Schema)), consumer, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, orders.Effects.Insert, m.ID, int64(len(m.Payload)))
		return err
	}, inbox.Batch(batchSize))
}

// side makes a contestant of a consumer that only reads.
func (b *bench) side(name string, lead int, limit time.Duration, c consumer) contest.Side {
	return contest.Side{Name: name, Run: func(ctx context.Context, _ int) (contest.Sample, error) {
		sample, _, err := b.measure(ctx, lead, limit, c)
		return sample, err
	}}
}

// withEffects makes one of a consumer that handles messages. Its tables are empty
// before a round; after it, what has an effect must be what is committed.
func (b *bench) withEffects(name string, c consumer) contest.Side {
	return contest.Side{Name: name, Run: func(ctx context.Context, _ int) (contest.Sample, error) {
		if err := tables.Reset(ctx, b.pool, tables.Older{}, orders); err != nil {
			return contest.Sample{}, err
		}
		sample, settled, err := b.measure(ctx, handleLead, handleLimit, c)
		if err != nil {
			return sample, err
		}
		handled, err := orders.Effects.Orders(ctx, b.pool)
		if err != nil {
			return sample, err
		}
		return sample, settled.matchEffects(handled)
	}}
}

// consumer consumes as a member of a group until the lap has ended, and then stops cleanly.
type consumer func(ctx context.Context, group string, l *lap) error

// measure has a consumer run a lap in a new group, and returns what that has committed:
// no more and no less than was done, with what came after the lap.
func (b *bench) measure(ctx context.Context, lead int, limit time.Duration, c consumer) (contest.Sample, offsets, error) {
	group := newGroup()
	l := newLap(lead, b.messages, limit)
	sample, err := contest.Measure(func() (int, error) {
		err := c(ctx, group, l)
		return int(l.done.Load()), err
	})
	if err != nil {
		return sample, offsets{}, err
	}
	settled, err := committed(ctx, b.client, b.topic, group)
	if err == nil {
		err = settled.matchDone(sample.Messages)
	}
	// Costs are those of all the consumer has done, the rate is that of the lap.
	share := float64(l.messages) / float64(sample.Messages)
	sample.CPU = time.Duration(float64(sample.CPU) * share)
	sample.Allocs = uint64(float64(sample.Allocs) * share)
	sample.Bytes = uint64(float64(sample.Bytes) * share)
	sample.Messages, sample.Elapsed = l.messages, l.elapsed
	return sample, settled, err
}

func newGroup() string { return fmt.Sprintf("bench-%d", time.Now().UnixNano()) }

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
