package inbox_test

import (
	"context"
	"testing"

	"github.com/onceward/onceward/inbox"
)

func TestRedriveThatCommitsAndFailsKeepsTheLetter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	f.commitsAt("a", func() error { return errHandler })
	// Twice: the letter that was written again can meet the same handler.
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 1, Failed: 1})
	f.wantLetters("a unfinished")
	f.redrive(inbox.Filter{MessageID: "a", Limit: 1}, inbox.RedriveResult{Selected: 1, Failed: 1})
	f.wantLetters("a unfinished")
	if letter := f.store.letters[0]; string(letter.Message.Payload) != "payload of a" || letter.Attempts != 3 {
		t.Errorf("letter is %+v", letter)
	}
}

// An ID may look like anything, also like how a letter is known that is written again.
func TestLetterIsWrittenAgainWhateverIDsAreUnfinished(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("x")) // letter 1
	f.commitsAt("x#1", func() error { return errHandler })
	f.wantOutcomes(f.process(message("x#1")), "parked")
	f.commitsAt("x", func() error { return errHandler })
	f.redrive(inbox.Filter{MessageID: "x"}, inbox.RedriveResult{Selected: 1, Failed: 1})
	f.wantLetters("x#1 unfinished", "x unfinished")
}

func TestLetterThatIsWrittenAgainHoldsUpItsKeyAsBefore(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.dead(keyed("x:1")...)
	careless := inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, _ inbox.Message) error {
		tx.Commit()
		return errHandler
	}, f.options(nil)...)
	if _, err := careless.Redrive(t.Context(), inbox.Filter{}, inbox.Apply); err != nil {
		t.Fatal(err)
	}
	f.wantOutcomes(f.process(keyed("x:2")...), "parked")
	f.wantLetters("x:1 unfinished", "x:2 behind")
}

func TestRedriveThatCommitsAndSucceedsIsRedriven(t *testing.T) {
	t.Parallel()
	f := &fixture{T: t, store: newFakeStore()}
	dead := true
	f.inbox = inbox.New(f.store, "billing", func(_ context.Context, tx *fakeTx, m inbox.Message) error {
		if dead {
			return inbox.Permanent(errHandler)
		}
		err := tx.Do(m.ID)
		tx.Commit()
		return err
	}, f.options(nil)...)
	f.process(message("a"))
	dead = false
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Redriven: 1})
	f.wantEffects("a")
	f.wantEvents(inbox.EventFailed, 1)
	f.wantLetters()
}
