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

	"github.com/onceward/onceward/idempotency"
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
		late <- write(context.Background(), tx, m) //nolint:contextcheck // deaf to its own
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
				_, err := stolen.Exec(ctx, "SELECT 1")
				late = append(late, err, stolen.QueryRow(ctx, "SELECT 1").Scan(new(int)), stolen.Rollback(ctx), stolen.Commit(ctx))
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

// TestTransactionIsNotTheHandlersToEnd: the methods of the lent transaction refuse and say what to do instead.
func TestTransactionIsNotTheHandlersToEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"Commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"Rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				return errors.Join(write(ctx, tx, m), end(ctx, tx))
			}), []message{badMessage()})
			letters := s.wantLetters(inbox.ReasonAttempts, badMessage())
			wantPhrases(t, letters[0].Error, "Onceward's to end", "return nil to commit", "error to roll it back")
			s.wantEffects(map[string]int{"bad": 0})
		})
	}
}

// TestTransactionEndedByStatement: what went round the methods must not look like a success with the effect lost, nor do
// the effect twice, nor go unnoticed.
func TestTransactionEndedByStatement(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"COMMIT":             {"COMMIT"},
		"ROLLBACK":           {"ROLLBACK"},
		"COMMIT AND CHAIN":   {"COMMIT AND CHAIN"},
		"ROLLBACK AND CHAIN": {"ROLLBACK AND CHAIN"},
		"COMMIT, BEGIN":      {"COMMIT", "BEGIN"},
		"ROLLBACK, BEGIN":    {"ROLLBACK", "BEGIN"},
		"ROLLBACK; BEGIN":    {"ROLLBACK; BEGIN"},
	} {
		for way, exec := range map[string]func(context.Context, pgx.Tx, string){
			"Exec": func(ctx context.Context, tx pgx.Tx, sql string) { _, _ = tx.Exec(ctx, sql) },
			"Conn": func(ctx context.Context, tx pgx.Tx, sql string) { _, _ = tx.Conn().Exec(ctx, sql) },
		} {
			if way == "Conn" && len(statements)+strings.Count(name, " ") > 1 {
				continue // whoever takes the connection and begins anew has left the contract behind
			}
			t.Run(way+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newService(t)
				s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
					if err := write(ctx, tx, m); err != nil {
						return err
					}
					for _, sql := range statements {
						exec(ctx, tx, sql)
					}
					return nil // and every error is swallowed
				}), []message{badMessage()})
				if strings.HasPrefix(name, "COMMIT") {
					s.wantLetters("") // the record was committed with the effect
					s.wantEffects(map[string]int{"bad": 1})
				} else {
					s.wantLetters(inbox.ReasonAttempts, badMessage())
					s.wantEffects(map[string]int{"bad": 0})
				}
				failures := s.failures()
				if len(failures) == 0 {
					t.Fatal("nobody was told")
				}
				if !errors.Is(failures[0], idempotency.ErrTransactionEnded) {
					t.Errorf("not ErrTransactionEnded: %v", failures[0])
				}
				wantPhrases(t, failures[0].Error(), "transaction was ended", "return nil or an error instead of COMMIT or ROLLBACK")
			})
		}
	}
}

// TestSavepointsAreTheHandlersOwn, by method and by statement.
func TestSavepointsAreTheHandlersOwn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.run(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_, failed := nested.Exec(ctx, "INSERT INTO nowhere VALUES (1)")
		if failed == nil {
			return errors.New("a statement that can't work did")
		}
		if err := nested.Rollback(ctx); err != nil {
			return err
		}
		for _, sql := range []string{"SAVEPOINT s", "INSERT INTO effect VALUES ('stray')", "ROLLBACK TO SAVEPOINT s", "RELEASE s"} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return write(ctx, tx, m)
	}, []message{{id: id("first")}})
	s.wantLetters("")
	s.wantEffects(map[string]int{"first": 1, "stray": 0})
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
			wantPhrases(t, letters[0].Error, "a statement of the work failed", "return its error")
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
