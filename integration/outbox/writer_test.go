package outbox

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/integration/stack"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// sleepyTrigger holds a transaction up between the number of a row and its writing, as triggers of users may.
const sleepyTrigger = `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN IF random() < 0.3 THEN PERFORM pg_sleep(random() * 0.004); END IF; RETURN NEW; END';
	CREATE TRIGGER dawdle BEFORE INSERT ON onceward.outbox FOR EACH ROW EXECUTE FUNCTION dawdle()`

// topics of the writers. A key belongs to one of them.
var topics = []string{"orders", "orders.late", "payments"}

const keys = 24

// key is the name of the n-th key. Those with an even number are locked by their row in the tally, which gives the
// transaction its xid before it waits; others by an advisory lock, which leaves that to the first write.
func key(n int) string { return fmt.Sprintf("k%02d", n) }

func topicOf(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return topics[h.Sum32()%uint32(len(topics))]
}

// writers are services that publish in their transactions.
type writers struct {
	t      testing.TB
	pool   *pgxpool.Pool
	events *outbox.Outbox[pgx.Tx]
	topic  string // of all events, if not "": else that of the key

	// outages: the server may go away, and take the second phase of a commit along.
	outages bool

	committed, aborted, prepared, savepoints atomic.Int64
}

// newWriters needs newDatabase. Connections go through a pool of their own.
func newWriters(t testing.TB, url string) *writers {
	t.Helper()
	pool := newPool(t, url, func(c *pgxpool.Config) {
		c.MaxConns = 24
		// A plan for each table size is not what is tested, and costs a round trip for each connection.
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	w := &writers{t: t, pool: pool, events: outbox.New(postgres.New(pool))}
	execute(t, pool, `INSERT INTO tally SELECT 'k' || lpad(n::text, 2, '0'), 0 FROM generate_series(0, $1::int - 1) n ON CONFLICT DO NOTHING`, keys)
	return w
}

// crowds are who writes in a schedule. In a cluster where somebody always commits, snapshots are fresh by luck: what is wrong with an
// old one shows among few writers only.
var crowds = []struct {
	writers, transactions int
	elsewhere             bool
}{{8, 30, true}, {2, 100, false}, {3, 70, false}}

// newCluster starts a server for one schedule.
func newCluster(t testing.TB) *stack.PostgresServer {
	t.Helper()
	return stack.NewPostgres(t, "max_prepared_transactions=60")
}

// run has n goroutines carry out random transactions until each has done so many, or ctx ends.
func (w *writers) run(ctx context.Context, random *rand.Rand, n, transactions int) {
	w.t.Helper()
	var all, second sync.WaitGroup
	for range n {
		random := newRandom(random.Uint64())
		all.Go(func() {
			for range transactions {
				if ctx.Err() != nil {
					return
				}
				if err := w.transaction(ctx, random, &second); err != nil && ctx.Err() == nil {
					w.t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	second.Wait()
}

// transaction is one of a service: it begins, takes its xid now or later, locks keys one after the other, publishes, changes
// its mind about parts, and ends in one of four ways. What ends a prepared one is added to second.
func (w *writers) transaction(ctx context.Context, random *rand.Rand, second *sync.WaitGroup) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if random.IntN(3) == 0 {
		if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id()`); err != nil {
			return err
		}
		dawdle(ctx, random)
	}
	chosen := random.Perm(keys)[:1+random.IntN(3)]
	slices.Sort(chosen) // one order for all, or they deadlock
	for _, n := range chosen {
		if err := w.part(ctx, random, tx, n); err != nil {
			return err
		}
		dawdle(ctx, random)
	}
	if random.IntN(4) == 0 {
		if err := w.loose(ctx, random, tx); err != nil {
			return err
		}
	}
	switch random.IntN(10) {
	case 0, 1:
		w.aborted.Add(1)
		return tx.Rollback(ctx)
	case 2:
		return w.prepare(ctx, random, tx, second)
	default:
		w.committed.Add(1)
		return tx.Commit(ctx)
	}
}

// part publishes events of one key, sometimes under a savepoint that is rolled back or released.
func (w *writers) part(ctx context.Context, random *rand.Rand, tx pgx.Tx, n int) error {
	if random.IntN(4) > 0 {
		return w.publish(ctx, random, tx, n, 1+random.IntN(4))
	}
	w.savepoints.Add(1)
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if err := w.publish(ctx, random, savepoint, n, 1+random.IntN(3)); err != nil {
		return err
	}
	if random.IntN(2) == 0 {
		return savepoint.Commit(ctx)
	}
	return savepoint.Rollback(ctx)
}

// publish takes the next numbers of a key under its lock and publishes an event for each, in one call or several.
func (w *writers) publish(ctx context.Context, random *rand.Rand, tx pgx.Tx, n, count int) error {
	key := key(n)
	last, err := w.lock(ctx, tx, n, count)
	if err != nil {
		return fmt.Errorf("lock %s: %w", key, err)
	}
	messages := make([]outbox.Message, count)
	for i := range messages {
		number := last - int64(count-1-i)
		messages[i] = outbox.Message{
			ID: eventID(key, number), Topic: w.topicOf(key), Key: []byte(key),
			Payload: fmt.Appendf(nil, `{"key":%q,"number":%d}`, key, number),
		}
	}
	for part := range slices.Chunk(messages, 1+random.IntN(count)) {
		if err := w.append(ctx, random, tx, part); err != nil {
			return err
		}
	}
	const advance = `UPDATE tally SET number = $2 WHERE key = $1 AND number < $2`
	if n%2 == 1 { // even ones were advanced by the lock
		if _, err := tx.Exec(ctx, advance, key, last); err != nil {
			return fmt.Errorf("advance %s: %w", key, err)
		}
	}
	const enter = `INSERT INTO ledger SELECT id, $2, $3 + i - 1 FROM unnest($1::text[]) WITH ORDINALITY AS e(id, i)`
	names := make([]string, count)
	for i, m := range messages {
		names[i] = m.ID
	}
	if _, err := tx.Exec(ctx, enter, names, key, last-int64(count-1)); err != nil {
		return fmt.Errorf("enter %s into the ledger: %w", key, err)
	}
	return nil
}

// lock locks a key and returns the last one of the numbers that it gives.
func (w *writers) lock(ctx context.Context, tx pgx.Tx, n, count int) (last int64, err error) {
	if n%2 == 0 {
		err = tx.QueryRow(ctx, `UPDATE tally SET number = number + $2 WHERE key = $1 RETURNING number`, key(n), count).Scan(&last)
		return last, err
	}
	if _, err = tx.Exec(ctx, `SELECT pg_advisory_xact_lock(7, $1)`, n); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `SELECT number + $2 FROM tally WHERE key = $1`, key(n), count).Scan(&last)
	return last, err
}

func (w *writers) topicOf(key string) string {
	if w.topic != "" {
		return w.topic
	}
	return topicOf(key)
}

// plainInsert is what a program without this library would send.
const plainInsert = `INSERT INTO onceward.outbox (message_id, topic, key, payload) VALUES ($1, $2, $3, $4)`

// append publishes by the library or by plain SQL.
func (w *writers) append(ctx context.Context, random *rand.Rand, tx pgx.Tx, messages []outbox.Message) error {
	if random.IntN(3) > 0 {
		return w.events.Publish(ctx, tx, messages...)
	}
	for _, m := range messages {
		if _, err := tx.Exec(ctx, plainInsert, m.ID, m.Topic, m.Key, m.Payload); err != nil {
			return fmt.Errorf("plain INSERT of %s: %w", m.ID, err)
		}
	}
	return nil
}

// loose publishes an event without a key, which is in no order.
func (w *writers) loose(ctx context.Context, random *rand.Rand, tx pgx.Tx) error {
	id := fmt.Sprintf("loose-%016x", random.Uint64())
	if err := w.append(ctx, random, tx, []outbox.Message{{ID: id, Topic: w.topicOf(id), Payload: []byte("loose")}}); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO ledger VALUES ($1, '', 0)`, id)
	return err
}

// prepare is the first phase of a two-phase commit; the second one comes later, from another connection, and may be a
// rollback. Until then the keys stay locked.
func (w *writers) prepare(ctx context.Context, random *rand.Rand, tx pgx.Tx, second *sync.WaitGroup) error {
	gid := fmt.Sprintf("writer-%016x", random.Uint64())
	if _, err := tx.Exec(ctx, `PREPARE TRANSACTION '`+gid+`'`); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	w.prepared.Add(1)
	end := `COMMIT PREPARED '` + gid + `'`
	if random.IntN(4) == 0 {
		end = `ROLLBACK PREPARED '` + gid + `'`
	}
	later := time.Duration(random.Int64N(int64(40 * time.Millisecond)))
	second.Go(func() {
		pause(ctx, later)
		if _, err := w.pool.Exec(context.WithoutCancel(ctx), end); err != nil && !w.outages {
			w.t.Errorf("%s: %v", end, err)
		}
	})
	return nil
}

// dawdle lets others get between two statements.
func dawdle(ctx context.Context, random *rand.Rand) {
	if random.IntN(2) == 0 {
		pause(ctx, time.Duration(random.Int64N(int64(4*time.Millisecond))))
	}
}

// heldKey is the key of what hold publishes.
const heldKey = "held"

// hold opens a transaction that publishes and stays open until the returned function is called, which commits it.
func (w *writers) hold() (commit func()) {
	w.t.Helper()
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, w.pool.Config().ConnConfig)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(ctx) })
	tx, err := conn.Begin(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for number := range int64(3) {
		id := eventID(heldKey, number+1)
		if err := w.events.Publish(ctx, tx, outbox.Message{ID: id, Topic: w.topicOf(heldKey), Key: []byte(heldKey), Payload: []byte("held")}); err != nil {
			w.t.Fatalf("publish in the transaction that stays open: %v", err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO ledger VALUES ($1, $2, $3)`, id, heldKey, number+1); err != nil {
			w.t.Fatal(err)
		}
	}
	return func() {
		w.t.Helper()
		if err := tx.Commit(ctx); err != nil {
			w.t.Fatalf("commit what stayed open: %v", err)
		}
	}
}

// elsewhere is another database of the cluster in which something is always being written, and one transaction stays
// open that has written. It ends with stop.
func elsewhere(t testing.TB, url string, random *rand.Rand) (stop func()) {
	t.Helper()
	pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 3 })
	execute(t, pool, `CREATE TABLE unrelated (n bigint)`)
	ctx, cancel := context.WithCancel(context.Background())
	held, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(ctx, `INSERT INTO unrelated VALUES (0)`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		random := newRandom(random.Uint64())
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = pool.Exec(ctx, `INSERT INTO unrelated VALUES (1)`)
				pause(ctx, time.Duration(random.Int64N(int64(5*time.Millisecond))))
			}
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		all.Wait()
		_ = held.Rollback(context.Background())
	})
}
