package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/inbox"
)

// effectTables has no constraint on effects: a second effect of a message must be able to show.
const effectTables = `
CREATE TABLE tally (
	consumer text NOT NULL,
	key      text NOT NULL,
	effects  int  NOT NULL,
	PRIMARY KEY (consumer, key)
);
CREATE TABLE effect (
	consumer text NOT NULL,
	key      text NOT NULL,
	id       text NOT NULL,
	number   int  NOT NULL, -- of the message, given by its producer
	taken    int  NOT NULL  -- from the tally, under its row lock
);`

// order is the payload of a message.
type order struct {
	Key    string `json:"key"`
	Number int    `json:"number"`
}

// handle writes the effect of one message in two statements, so that a process can die between them.
func (m *member) handle(ctx context.Context, tx pgx.Tx, message inbox.Message) error {
	o, err := readOrder(message)
	if err != nil {
		return err
	}
	const take = `INSERT INTO tally VALUES ($1, $2, 1)
		ON CONFLICT (consumer, key) DO UPDATE SET effects = tally.effects + 1 RETURNING effects`
	var taken int
	if err := tx.QueryRow(ctx, take, m.Consumer, o.Key).Scan(&taken); err != nil {
		return fmt.Errorf("take a number of the key: %w", err)
	}
	m.dawdle(message.ID, o.Number)
	const write = `INSERT INTO effect VALUES ($1, $2, $3, $4, $5)`
	if _, err := tx.Exec(ctx, write, m.Consumer, o.Key, message.ID, o.Number, taken); err != nil {
		return fmt.Errorf("write the effect: %w", err)
	}
	m.hold(message.ID)
	return nil
}

// handleBulk does the same for many messages, in two statements altogether.
func (m *member) handleBulk(ctx context.Context, tx pgx.Tx, messages []inbox.Message) error {
	keys, ids := make([]string, len(messages)), make([]string, len(messages))
	numbers, taken := make([]int, len(messages)), make([]int, len(messages))
	for i := range messages {
		o, err := readOrder(messages[i])
		if err != nil {
			return err
		}
		keys[i], ids[i], numbers[i] = o.Key, messages[i].ID, o.Number
	}
	sorted := slices.Sorted(slices.Values(keys)) // two batches must lock keys in one order
	const take = `INSERT INTO tally SELECT $1, key, count(*) FROM unnest($2::text[]) key GROUP BY key ORDER BY key
		ON CONFLICT (consumer, key) DO UPDATE SET effects = tally.effects + excluded.effects RETURNING key, effects`
	rows, err := tx.Query(ctx, take, m.Consumer, sorted)
	if err != nil {
		return fmt.Errorf("take numbers of the keys: %w", err)
	}
	last := map[string]int{}
	var key string
	var effects int
	if _, err := pgx.ForEachRow(rows, []any{&key, &effects}, func() error {
		last[key] = effects
		return nil
	}); err != nil {
		return fmt.Errorf("take numbers of the keys: %w", err)
	}
	for i := len(keys) - 1; i >= 0; i-- {
		taken[i] = last[keys[i]]
		last[keys[i]]--
	}
	for i := range ids {
		m.dawdle(ids[i], numbers[i])
	}
	const write = `INSERT INTO effect
		SELECT $1, * FROM unnest($2::text[], $3::text[], $4::int[], $5::int[])`
	if _, err := tx.Exec(ctx, write, m.Consumer, keys, ids, numbers, taken); err != nil {
		return fmt.Errorf("write the effects: %w", err)
	}
	for _, id := range ids {
		m.hold(id)
	}
	return nil
}

func readOrder(message inbox.Message) (o order, err error) {
	if err := json.Unmarshal(message.Payload, &o); err != nil {
		return o, inbox.Permanent(fmt.Errorf("read the order: %w", err))
	}
	return o, nil
}

// dawdle is a handler that is slow and deaf: it does not look at its context.
func (m *member) dawdle(id string, number int) {
	if m.SlowEvery == 0 || number%m.SlowEvery != 0 {
		return
	}
	if _, again := m.slept.LoadOrStore(id, true); again {
		return
	}
	<-time.After(m.Slow)
	m.print(lineSlept, id)
}

// hold stops before the commit, once, until the parent says go.
func (m *member) hold(id string) {
	if m.Hold != id {
		return
	}
	m.holding.Do(func() {
		m.print(lineHeld, id)
		<-m.released
	})
}
