package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/sqlite"
)

// commitsAt makes the handler commit its transaction after the effect of this
// message, and return then what it is told to.
func (f *fixture) commitsAt(id string, then func() error) {
	f.on = func(_ context.Context, tx *fakeTx, m inbox.Message) error {
		if m.ID != id {
			return nil
		}
		if err := tx.Do(m.ID); err != nil {
			return err
		}
		tx.Commit()
		return then()
	}
}

func TestMessagesOfABatchThatTheirHandlerCommittedTooEarlyAreSetAside(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(5))
	// The effect of c is in the transaction that c commits; d meets a dead one.
	f.commitsAt("c", func() error { return errHandler })
	results := f.process(messages("a", "b", "c", "d", "e")...)
	f.wantOutcomes(results, "duplicate, duplicate, parked, parked, parked")
	wantError(t, results[2].Err, idempotency.ErrTransactionEnded)
	f.wantEffects("a", "b", "c")
	f.wantLetters("c unfinished", "d unfinished", "e unfinished")
	f.wantCalls("a", "b", "c")
	f.wantOutcomes(f.process(messages("c", "d", "e", "f")...), "duplicate, duplicate, duplicate, processed")
	if n := f.inbox.Stats().Parked[inbox.ReasonUnfinished]; n != 3 {
		t.Errorf("%d counted", n)
	}
}

func TestHandlerThatCommitsAndReturnsNilIsReportedAndItsMessageIsDone(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 5} {
		f := &fixture{T: t, store: newFakeStore()}
		f.inbox = inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error {
			if err := tx.Do(m.ID); err != nil {
				return err
			}
			tx.Commit()
			return nil
		}, f.options([]inbox.Option{inbox.Batch(batch)})...)
		results := f.process(messages("a", "b")...)
		if batch == 1 {
			f.wantOutcomes(results, "failed, not run")
			f.wantOutcomes(f.process(messages("a")...), "duplicate")
			f.wantEffects("a")
			f.wantLetters()
		} else {
			f.wantOutcomes(results, "duplicate, parked")
			f.wantEffects("a")
			f.wantLetters("b unfinished")
		}
		f.wantEvents(inbox.EventFailed, 1)
		for _, event := range f.events {
			if event.Kind == inbox.EventFailed && !strings.Contains(event.Err.Error(), "must leave commit and rollback to the inbox") {
				t.Errorf("fix is not named: %v", event.Err)
			}
		}
	}
}

func TestMessageWhoseHandlerCommitsAndFailsIsSetAside(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func() error{
		"error":     func() error { return errHandler },
		"permanent": func() error { return inbox.Permanent(errHandler) },
		"panic":     func() error { panic(errHandler) },
		"conflict":  func() error { return idempotency.ErrConflict },
	} {
		for _, attempts := range []int{1, 10} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := setup(t, inbox.MaxAttempts(attempts))
				f.commitsAt("a", then)
				f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
				f.wantLetters("a unfinished")
				f.wantEffects("a", "b")
				if letter := f.store.letters[0]; !strings.Contains(letter.Error, "ended") {
					t.Errorf("letter says %q", letter.Error)
				}
			})
		}
	}
}

func TestHandlerThatRollsBackAndFailsIsAFailedAttemptOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 3} {
		f := setup(t, inbox.Batch(batch))
		f.on = func(_ context.Context, tx *fakeTx, m inbox.Message) error {
			if m.ID == "b" {
				tx.Rollback()
				return errHandler
			}
			return nil
		}
		f.wantOutcomes(f.process(messages("a", "b", "c")...), "processed, failed, not run")
		f.on = nil
		f.wantOutcomes(f.process(messages("a", "b", "c")...), "duplicate, processed, processed")
		f.wantLetters()
		f.wantOutcomes(f.process(messages("a", "b", "c")...), "duplicate, duplicate, duplicate")
	}
}

func TestUnfinishedMessagesAreRememberedThroughAnOutage(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(3))
	f.commitsAt("b", func() error { return errHandler })
	f.store.beginFaults = []error{nil, idempotency.ErrUnavailable}
	results, err := f.inbox.Process(t.Context(), messages("a", "b", "c"))
	wantError(t, err, idempotency.ErrUnavailable)
	f.wantOutcomes(results, "not run, not run, not run")
	f.wantOutcomes(f.process(messages("x", "b", "c", "a")...), "processed, parked, parked, duplicate")
	f.wantLetters("b unfinished", "c unfinished")
	f.wantEffects("a", "b", "x")
}

// What can't be told at once, because a claim is in progress, is told at the next.
func TestMessageThatIsSetAsideForItsAttemptsMayTurnOutUnfinished(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.MaxAttempts(1))
	f.commitsAt("a", func() error { return errHandler })
	f.store.beginFaults = []error{nil, idempotency.ErrInProgress}
	f.wantOutcomes(f.process(messages("a", "b")...), "parked, processed")
	f.wantLetters("a unfinished")
}

// The letters of a batch are in what its handler commits.
func TestLettersThatAHandlerCommittedTooEarlyAreWrittenOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(3))
	f.commitsAt("b", func() error { return errHandler })
	ms := []inbox.Message{message(""), message("b"), message("c")}
	f.wantOutcomes(f.process(ms...), "duplicate, parked, parked")
	f.wantOutcomes(f.process(ms...), "duplicate, duplicate, duplicate")
	f.wantLetters(" missing_id", "b unfinished", "c unfinished")
}

func TestHandlerThatCommitsAndHangsLosesNothing(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 3} {
		t.Run(strconv.Itoa(batch), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.HandlerTimeout(time.Second), inbox.Batch(batch))
				f.T = t
				hang := make(chan struct{})
				f.commitsAt("b", func() error { <-hang; return nil })
				f.process(message("known"))
				f.wantOutcomes(f.process(messages("known", "a", "b")...), map[int]string{1: "duplicate, processed, parked", 3: "duplicate, duplicate, parked"}[batch])
				f.wantLetters("b unfinished")
				f.wantEffects("known", "a", "b")
				close(hang)
				synctest.Wait()
				f.wantEvents(inbox.EventAbandoned, 1)
			})
		})
	}
}

// Between the rollback of a failed batch and the next claim, another process may
// handle a message: that is no sign of an unfinished one.
func TestMessageHandledElsewhereAfterAFailedBatchIsADuplicate(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(2))
	other := inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error { return tx.Do(m.ID) })
	done := make(chan error)
	first := true
	f.on = func(context.Context, *fakeTx, inbox.Message) error {
		if !first {
			return nil
		}
		first = false
		go func() {
			_, err := other.Process(t.Context(), messages("b"))
			done <- err
		}()
		return errHandler
	}
	f.store.onRollback = func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	f.wantOutcomes(f.process(messages("a", "b")...), "processed, duplicate")
	f.wantLetters()
}

// That a handler hung is no sign that it had committed, once the rollback shows.
func TestMessagesHandledElsewhereAfterAHungHandlerAreDuplicates(t *testing.T) {
	t.Parallel()
	for _, lostLease := range []bool{false, true} {
		t.Run(strconv.FormatBool(lostLease), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.HandlerTimeout(time.Minute), inbox.Batch(3))
				other := inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error { return tx.Do(m.ID) })
				hang := make(chan struct{})
				f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
					if m.ID == "b" {
						<-hang
					}
					return nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if lostLease {
					time.AfterFunc(time.Second, cancel)
				}
				if _, err := f.inbox.Process(ctx, messages("a", "b", "c")); (err != nil) != lostLease {
					t.Fatal(err)
				}
				if _, err := other.Process(t.Context(), messages("a", "b", "c")); err != nil {
					t.Fatal(err)
				}
				f.wantOutcomes(f.process(messages("a", "b", "c")...), "duplicate, duplicate, duplicate")
				f.wantLetters()
				f.wantEffects("a", "b", "c")
				close(hang)
				synctest.Wait()
			})
		})
	}
}

func TestBulkHandlerThatCommitsIsDoneWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then error
		want string
	}{"nil": {nil, "duplicate, duplicate"}, "error": {errHandler, "parked, parked"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{T: t, store: newFakeStore()}
			f.inbox = inbox.NewBulk(f.store, "billing", func(_ context.Context, tx *fakeTx, ms []inbox.Message) error {
				for _, m := range ms {
					if err := tx.Do(m.ID); err != nil {
						return err
					}
				}
				tx.Commit()
				return c.then
			}, f.options([]inbox.Option{inbox.Batch(2)})...)
			f.wantOutcomes(f.process(messages("a", "b")...), c.want)
			f.wantEffects("a", "b")
		})
	}
}

// On a real database: effects and dead letters together are the messages.
func TestHandlerThatCommitsInsideABatchLosesNothingOnSQLite(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]func(context.Context, *sql.Tx) error{
		"Commit": func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"COMMIT": func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, "COMMIT"); return err },
	} {
		for _, then := range []error{nil, errHandler} {
			t.Run(fmt.Sprint(name, then), func(t *testing.T) {
				t.Parallel()
				store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "inbox.db"), sqlite.WithoutFsync())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = store.Close() })
				if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE effect (id TEXT)"); err != nil {
					t.Fatal(err)
				}
				in := inbox.New(store, "billing", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
					if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?)", m.ID); err != nil || m.ID != "2" {
						return err
					}
					return errors.Join(commit(ctx, tx), then)
				}, inbox.Batch(10), inbox.Logger(slog.New(slog.DiscardHandler)))
				ms := messages("0", "1", "2", "3", "4", "5", "6", "7", "8", "")
				for range 20 {
					results, err := in.Process(t.Context(), ms)
					if err != nil {
						t.Fatal(err)
					}
					if !slices.ContainsFunc(results, func(r inbox.Result) bool { return !r.Settled() }) {
						break
					}
				}
				ends := map[string]int{}
				rows, err := store.DB().QueryContext(t.Context(), "SELECT id FROM effect")
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				for rows.Next() {
					var id string
					if err := rows.Scan(&id); err != nil {
						t.Fatal(err)
					}
					ends[id]++
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				letters, err := in.DeadLetters(t.Context(), inbox.Filter{})
				if err != nil {
					t.Fatal(err)
				}
				for _, letter := range letters {
					// The effect of 2 is committed although its handler failed: a person decides.
					if letter.Message.ID != "2" {
						ends[letter.Message.ID]++
					}
				}
				for _, m := range ms {
					if ends[m.ID] != 1 {
						t.Errorf("message %s ended %d times: %v, letters %d", m.ID, ends[m.ID], ends, len(letters))
					}
				}
			})
		}
	}
}
