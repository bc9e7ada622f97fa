package crash

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/integration/child"
	"github.com/onceward/onceward/integration/stack"
)

// drain waits until the group has committed the end of every partition, and fails the test if it stops getting nearer.
func (tr *trial) drain(group string) {
	tr.t.Helper()
	var behind int64
	last := time.Now()
	for {
		now, err := tr.lag(group)
		switch {
		case err == nil && now == 0:
			return
		case err == nil && now != behind:
			behind, last = now, time.Now()
		case time.Since(last) > child.Patience:
			tr.t.Fatalf("group %s made no progress for %v: %d messages are not committed, %v", group, child.Patience, behind, err)
		}
		pause(context.Background(), 50*time.Millisecond)
	}
}

// lag is how many offsets lie between what the group has committed and the ends of the partitions.
func (tr *trial) lag(group string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	topic, client := tr.orders.Topic, tr.producer.client
	var all []int
	var ends []kafka.OffsetRequest
	for p := range partitions {
		all, ends = append(all, p), append(ends, kafka.LastOffsetOf(p))
	}
	offsets, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: ends}})
	if err != nil {
		return 0, fmt.Errorf("ask for the ends: %w", err)
	}
	committed, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: all}})
	if err != nil {
		return 0, fmt.Errorf("ask for the committed offsets: %w", err)
	}
	if committed.Error != nil {
		return 0, fmt.Errorf("ask for the committed offsets: %w", committed.Error)
	}
	var lag int64
	for _, end := range offsets.Topics[topic] {
		if end.Error != nil {
			return 0, fmt.Errorf("ask for the end of partition %d: %w", end.Partition, end.Error)
		}
		lag += end.LastOffset
	}
	if len(committed.Topics[topic]) != partitions {
		return 0, fmt.Errorf("%d of %d partitions answered", len(committed.Topics[topic]), partitions)
	}
	for _, c := range committed.Topics[topic] {
		lag -= max(c.CommittedOffset, 0) // -1: none yet
	}
	if lag < 0 {
		tr.t.Fatalf("group %s committed %d offsets beyond the end", group, -lag)
	}
	return lag, nil
}

// verdict is what the effects of one consumer show, by message id.
type verdict struct {
	effects                            int
	lost, doubled, disordered, foreign []string
}

func (v verdict) guilty() bool {
	return len(v.lost)+len(v.doubled)+len(v.disordered)+len(v.foreign) > 0
}

func (v verdict) String() string {
	some := func(ids []string) string { return fmt.Sprintf("%d %v", len(ids), ids[:min(len(ids), 10)]) }
	return fmt.Sprintf("%d effects: lost %s, doubled %s, out of order %s, never sent %s",
		v.effects, some(v.lost), some(v.doubled), some(v.disordered), some(v.foreign))
}

// judge compares the effects with the last number sent of each key.
func judge(ctx context.Context, pool *pgxpool.Pool, consumer string, sent map[string]int) (v verdict, err error) {
	const effects = `SELECT key, id, number, taken FROM effect WHERE consumer = $1 ORDER BY key, taken, number`
	rows, err := pool.Query(ctx, effects, consumer)
	if err != nil {
		return v, fmt.Errorf("read the effects: %w", err)
	}
	var key, id string
	var number, taken int
	seen := map[string]int{} // effects by id
	next := map[string]int{} // by key
	if _, err := pgx.ForEachRow(rows, []any{&key, &id, &number, &taken}, func() error {
		v.effects++
		next[key]++
		if seen[id]++; seen[id] > 1 {
			v.doubled = append(v.doubled, id)
		}
		if number != taken || taken != next[key] {
			v.disordered = append(v.disordered, id)
		}
		if number < 1 || number > sent[key] || id != messageID(key, number) {
			v.foreign = append(v.foreign, id)
		}
		return nil
	}); err != nil {
		return v, fmt.Errorf("read the effects: %w", err)
	}
	for key, last := range sent {
		for number := 1; number <= last; number++ {
			if id := messageID(key, number); seen[id] == 0 {
				v.lost = append(v.lost, id)
			}
		}
	}
	return v, nil
}

// check holds the end against the rules of the package comment.
func (tr *trial) check(consumer, group string) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), child.Patience)
	defer cancel()

	v, err := judge(ctx, tr.pool, consumer, tr.producer.sent)
	if err != nil {
		tr.t.Fatal(err)
	}
	if v.guilty() || v.effects != tr.producer.messages {
		tr.t.Errorf("%s: %d messages, %v", consumer, tr.producer.messages, v)
	}

	for _, c := range []struct {
		what, sql string
		want      int
	}{
		{"records", `SELECT count(*) FROM onceward.record WHERE scope LIKE $1 || '/%'`, tr.producer.messages},
		{"attempts spent", `SELECT count(*) FROM onceward.attempt WHERE scope LIKE $1 || '/%'`, 0},
		{"dead letters", `SELECT count(*) FROM onceward.dead_letter WHERE consumer = $1`, 0},
		// Tallies count effects without looking at them.
		{"effects by tally", `SELECT coalesce(sum(effects), 0) FROM tally WHERE consumer = $1`, tr.producer.messages},
	} {
		var got int
		if err := tr.pool.QueryRow(ctx, c.sql, consumer).Scan(&got); err != nil {
			tr.t.Fatalf("count %s: %v", c.what, err)
		}
		if got != c.want {
			tr.t.Errorf("%s: %s: %d, want %d", consumer, c.what, got, c.want)
		}
	}
	if lag, err := tr.lag(group); err != nil || lag != 0 {
		tr.t.Errorf("%s: the committed offsets end %d before the topic, %v", consumer, lag, err)
	}
	if tr.t.Failed() {
		tr.evidence(ctx)
	}
}

// evidence shows what was set aside or failed, for whoever has to find out why.
func (tr *trial) evidence(ctx context.Context) {
	const failed = `SELECT scope || ' ' || key || ' ' || error FROM onceward.attempt
		UNION ALL SELECT consumer || ' ' || message_id || ' ' || reason || ' ' || error FROM onceward.dead_letter LIMIT 20`
	rows, err := tr.pool.Query(ctx, failed)
	if err != nil {
		tr.t.Log(err)
		return
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	tr.t.Log(lines, err)
}

// TestCheckerSeesEveryKindOfWrong judges the judge: a test that can't fail proves nothing.
func TestCheckerSeesEveryKindOfWrong(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), stack.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const right = `INSERT INTO effect SELECT 'billing', 'k', 'k-' || lpad(n::text, 6, '0'), n, n FROM generate_series(1, 5) n`
	for _, c := range []struct {
		what, wrong string
		of          func(verdict) []string
		want        []string
	}{
		{"lost", `DELETE FROM effect WHERE number = 5`, func(v verdict) []string { return v.lost }, []string{"k-000005"}},
		{"doubled", `INSERT INTO effect SELECT * FROM effect WHERE number = 2`, func(v verdict) []string { return v.doubled }, []string{"k-000002"}},
		{
			"disordered", `UPDATE effect SET taken = 7 - taken WHERE number IN (3, 4)`,
			func(v verdict) []string { return v.disordered },
			[]string{"k-000004", "k-000003"},
		},
		{"foreign", `INSERT INTO effect VALUES ('billing', 'k', 'k-000006', 6, 6)`, func(v verdict) []string { return v.foreign }, []string{"k-000006"}},
		{"nothing", `INSERT INTO effect VALUES ('shipping', 'k', 'k-000001', 1, 1)`, func(verdict) []string { return nil }, nil},
	} {
		for _, sql := range []string{`DROP TABLE IF EXISTS tally, effect`, effectTables, right, c.wrong} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		v, err := judge(t.Context(), pool, "billing", map[string]int{"k": 5})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.of(v); !slices.Equal(got, c.want) || v.guilty() != (c.want != nil) {
			t.Errorf("%s: %v, want %v; %v", c.what, got, c.want, v)
		}
	}
}
