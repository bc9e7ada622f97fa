package badinput

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

func badMessage() message {
	return message{id: id("bad"), key: []byte("k\x00"), payload: []byte("\x00\xff"), headers: []kafka.Header{{Key: "h", Value: []byte{0, 1}}}}
}

// wantPhrases checks that an error's text names what it must.
func wantPhrases(t testing.TB, text string, phrases ...string) {
	t.Helper()
	for _, phrase := range phrases {
		if !strings.Contains(text, phrase) {
			t.Errorf("the error does not say %q: %s", phrase, text)
		}
	}
}

func TestPanicIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"string": "boom", "error": errors.New("boom"), "nil pointer": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if err := write(ctx, tx, m); err != nil {
					return err
				}
				if value == nil {
					value = (*struct{ field string })(nil).field
				}
				panic(value)
			}), []message{badMessage()})
			letters := s.wantLetters(inbox.ReasonAttempts, badMessage())
			wantPhrases(t, letters[0].Error, "handler panicked")
			if letters[0].Attempts != 2 {
				t.Errorf("%d attempts, want 2", letters[0].Attempts)
			}
			s.wantEffects(map[string]int{"bad": 0})
		})
	}
}

func TestPanicInABatchFailsAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.run(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if err := write(ctx, tx, m); err != nil {
			return err
		}
		if m.ID == "bad" {
			panic("boom")
		}
		return nil
	}, []message{{id: id("first")}, badMessage(), {id: id("third")}}, inbox.Batch(10))
	s.wantLetters(inbox.ReasonAttempts, badMessage())
	s.wantEffects(map[string]int{"first": 1, "bad": 0, "third": 1})
}

// TestHandlerDeafToItsDeadlineIsLeftBehind: when it wakes, its transaction is gone, and what it writes then goes nowhere.
func TestHandlerDeafToItsDeadlineIsLeftBehind(t *testing.T) {
	t.Parallel()
	s := newService(t)
	wake, late := make(chan struct{}), make(chan error, 2)
	s.run(unlessNext(func(_ context.Context, tx pgx.Tx, m inbox.Message) error {
		<-wake
		late <- write(context.Background(), tx, m)
		return nil
	}), []message{badMessage()}, inbox.HandlerTimeout(100*time.Millisecond))

	letters := s.wantLetters(inbox.ReasonAttempts, badMessage())
	wantPhrases(t, letters[0].Error, "HandlerTimeout", "left behind")
	if n := s.seen(inbox.EventAbandoned); n != 2 {
		t.Errorf("%d handlers were reported as left behind, want 2", n)
	}
	close(wake)
	for range 2 {
		if err := <-late; err == nil {
			t.Error("a handler that was left behind could still write")
		}
	}
	s.wantEffects(map[string]int{"bad": 0})
}

// TestTransactionUsedAfterTheHandlerReturned: the goroutine gets an error, and the messages behind keep their effects.
func TestTransactionUsedAfterTheHandlerReturned(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"committed": nil, "rolled back": inbox.Permanent(errors.New("refused"))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			var leaked atomic.Pointer[pgx.Tx]
			sent := []message{{id: id("leaks")}, {id: id("2")}, {id: id("3")}}
			var late []error
			s.run(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if m.ID == "leaks" {
					leaked.Store(&tx)
					return errors.Join(write(ctx, tx, m), end)
				}
				// On whatever connection this runs, the leaked transaction must not reach into it.
				stolen := *leaked.Load()
				late = append(late, write(ctx, stolen, inbox.Message{ID: "stray"}))
				_, err := stolen.Query(ctx, "SELECT 1")
				late = append(late, err, stolen.Rollback(ctx), stolen.Commit(ctx))
				return write(ctx, tx, m)
			}, sent)
			for i, err := range late {
				if err == nil {
					t.Errorf("use %d of a transaction that had ended was not refused", i+1)
				}
			}
			want := map[string]int{"leaks": 1, "stray": 0, "2": 1, "3": 1}
			if end != nil {
				want["leaks"] = 0
			}
			s.wantEffects(want)
		})
	}
}

// TestHandlerEndsItsTransaction: by method or by SQL, it must not look like a success with the effect lost, and not do
// the effect twice.
func TestHandlerEndsItsTransaction(t *testing.T) {
	t.Parallel()
	sql := func(statement string) inbox.Handler[pgx.Tx] {
		return func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			_, _ = tx.Exec(ctx, statement)
			return nil
		}
	}
	for name, end := range map[string]inbox.Handler[pgx.Tx]{
		"Commit":   func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error { _ = tx.Commit(ctx); return nil },
		"Rollback": func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error { _ = tx.Rollback(ctx); return nil },
		"Conn": func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			_, _ = tx.Conn().Exec(ctx, "COMMIT")
			return nil
		},
		"SQL COMMIT":             sql("COMMIT"),
		"SQL ROLLBACK":           sql("ROLLBACK"),
		"SQL COMMIT AND CHAIN":   sql("COMMIT AND CHAIN"),
		"SQL ROLLBACK AND CHAIN": sql("ROLLBACK AND CHAIN"),
		"SQL COMMIT, BEGIN": func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			_, _ = tx.Exec(ctx, "COMMIT")
			_, _ = tx.Exec(ctx, "BEGIN")
			return nil
		},
		"SQL ROLLBACK, BEGIN": func(ctx context.Context, tx pgx.Tx, _ inbox.Message) error {
			_, _ = tx.Exec(ctx, "ROLLBACK")
			_, _ = tx.Exec(ctx, "BEGIN")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if err := write(ctx, tx, m); err != nil {
					return err
				}
				return end(ctx, tx, m)
			}), []message{badMessage()})
			letters, err := s.inbox.DeadLetters(t.Context(), inbox.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			effects := s.effects("bad")
			t.Logf("effects %d, dead letters %d, failures: %v", effects, len(letters), s.failures())
			if effects+len(letters) != 1 {
				t.Errorf("%d effects and %d dead letters, want exactly one of them", effects, len(letters))
			}
			if len(letters) == 1 {
				s.wantBytes(letters[0].Message, badMessage())
			}
			failures := s.failures()
			if len(failures) == 0 {
				t.Fatal("nobody was told")
			}
			wantPhrases(t, failures[0].Error(), "transaction")
		})
	}
}

// TestSwallowedSQLErrorIsNoSuccess: after an error PostgreSQL answers COMMIT with ROLLBACK, and no error.
func TestSwallowedSQLErrorIsNoSuccess(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]inbox.Option{"one by one": nil, "batch": {inbox.Batch(10)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.run(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if err := write(ctx, tx, m); err != nil && m.ID != "bad" {
					return err
				}
				if m.ID == "bad" {
					_, _ = tx.Exec(ctx, "INSERT INTO nowhere VALUES (1)")
				}
				return nil
			}, []message{{id: id("first")}, badMessage(), {id: id("third")}}, options...)
			letters := s.wantLetters(inbox.ReasonAttempts, badMessage())
			t.Log(letters[0].Error)
			wantPhrases(t, letters[0].Error, "transaction", "error")
			s.wantEffects(map[string]int{"first": 1, "bad": 0, "third": 1})
		})
	}
}

func TestGoexitIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.run(unlessNext(func(context.Context, pgx.Tx, inbox.Message) error {
		runtime.Goexit()
		return nil
	}), []message{badMessage()})
	letters := s.wantLetters(inbox.ReasonAttempts, badMessage())
	wantPhrases(t, letters[0].Error, "runtime.Goexit", "return an error")
}
