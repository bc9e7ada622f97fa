package crash

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
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
		case time.Since(last) > patience:
			tr.t.Fatalf("group %s made no progress for %v: %d messages are not committed, %v", group, patience, behind, err)
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

// check compares the effects with what was sent; see the package comment.
func (tr *trial) check(consumer, group string) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	const effects = `SELECT key, id, number, taken FROM effect WHERE consumer = $1 ORDER BY key, taken, number`
	rows, err := tr.pool.Query(ctx, effects, consumer)
	if err != nil {
		tr.t.Fatal(err)
	}
	var key, id string
	var number, taken, total, doubled, disordered, foreign int
	seen := map[string]int{} // effects by id
	next := map[string]int{} // by key
	if _, err := pgx.ForEachRow(rows, []any{&key, &id, &number, &taken}, func() error {
		total++
		next[key]++
		if seen[id]++; seen[id] > 1 {
			doubled++
			tr.t.Logf("doubled: %s", id)
		}
		if number != taken || taken != next[key] {
			if disordered++; disordered <= 10 {
				tr.t.Logf("out of order: %s took number %d, expected %d", id, taken, next[key])
			}
		}
		if number < 1 || number > tr.producer.sent[key] || id != messageID(key, number) {
			foreign++
		}
		return nil
	}); err != nil {
		tr.t.Fatal(err)
	}
	lost := 0
	for key, last := range tr.producer.sent {
		for number := 1; number <= last; number++ {
			if seen[messageID(key, number)] == 0 {
				if lost++; lost <= 10 {
					tr.t.Logf("lost: %s", messageID(key, number))
				}
			}
		}
	}
	if lost+doubled+disordered+foreign > 0 || total != tr.producer.messages {
		tr.t.Errorf("%s: %d messages, %d effects: lost %d, doubled %d, out of order %d, never sent %d",
			consumer, tr.producer.messages, total, lost, doubled, disordered, foreign)
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
