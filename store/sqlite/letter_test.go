package sqlite_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestTimesOfALetterStayWithinTheCalendar(t *testing.T) {
	t.Parallel()
	store := newDatabase(t).open(t, time.Minute)
	sent := inbox.Message{ID: "a", Source: "s", Topic: "s", Time: time.UnixMilli(1 << 62)}
	letter := inbox.DeadLetter{Consumer: "billing", Reason: inbox.ReasonPermanent, Message: sent}
	err := store.Atomic(t.Context(), nil, func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
		return store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{letter})
	})
	if err != nil {
		t.Fatal(err)
	}
	letters, err := store.DeadLetters(t.Context(), "billing", inbox.Filter{Limit: 1})
	if err != nil || len(letters) != 1 || letters[0].Message.Time.Year() != 9999 {
		t.Errorf("got %+v, %v", letters, err)
	}
}
