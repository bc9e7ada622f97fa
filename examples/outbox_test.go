package examples_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store/postgres"
)

// place and look are what docs/outbox.md shows.
func place(ctx context.Context, pool *pgxpool.Pool, orderID string, payload []byte) error {
	events := outbox.New(postgres.New(pool))
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// business writes on tx
		return events.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: []byte(orderID), Payload: payload})
	})
	return err
}

func look(ctx context.Context, store outbox.OperatorStore) ([]outbox.RelayStatus, error) {
	operator := outbox.NewOperator(store)
	relays, err := operator.Status(ctx)
	return relays, err
}

var _, _ = place, look

// webhooks is the publisher that docs/outbox.md shows.
type webhooks struct {
	post func(context.Context, outbox.Event) error
}

func (p webhooks) Publish(ctx context.Context, events []outbox.Event) []error {
	results := make([]error, len(events))
	failed := map[string]bool{} // topics with keys
	for i, e := range events {
		key := e.Topic + "\x00" + string(e.Key)
		if e.Key != nil && failed[key] {
			results[i] = outbox.ErrBehind
			continue
		}
		results[i] = p.post(ctx, e)
		failed[key] = results[i] != nil
	}
	return results
}

func TestPublisherOfTheDocumentationLetsNothingOvertake(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	var posted []string
	p := webhooks{post: func(_ context.Context, e outbox.Event) error {
		if e.ID == "b" {
			return away
		}
		posted = append(posted, e.ID)
		return nil
	}}
	event := func(id, key string) outbox.Event {
		e := outbox.Event{Message: outbox.Message{ID: id, Topic: "orders"}}
		if key != "" {
			e.Key = []byte(key)
		}
		return e
	}
	results := p.Publish(t.Context(), []outbox.Event{event("a", "1"), event("b", "1"), event("c", "1"), event("d", "2"), event("e", "")})
	if results[0] != nil || !errors.Is(results[1], away) || !errors.Is(results[2], outbox.ErrBehind) || results[3] != nil || results[4] != nil {
		t.Errorf("results are %v", results)
	}
	if len(posted) != 3 {
		t.Errorf("posted %q", posted)
	}
}
