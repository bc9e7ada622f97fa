package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Mode says whether Redrive and Discard act.
type Mode bool

const (
	// DryRun only counts what is selected.
	DryRun Mode = false
	// Apply acts.
	Apply Mode = true
)

// RedriveResult counts dead letters by what became of them.
type RedriveResult struct {
	// Selected is how many the filter selected, but for those Redrive leaves
	// out; in a DryRun the only count.
	Selected int
	// Redriven: handled and removed, in one transaction.
	Redriven int
	// Failed: the handler failed again; the letter stays, with the new error.
	Failed int
	// Blocked: an older dead letter with the same key must go first, or
	// another transaction is at work on this one.
	Blocked int
	// Gone: somebody else redrove or discarded it meanwhile.
	Gone int
}

const (
	// listLimit bounds a list whose caller set no bound: its payloads are all
	// in memory at once.
	listLimit = 1000

	// letterPage is how many dead letters Redrive and Discard look at a time,
	// without their payloads, and Discard deletes in one transaction.
	letterPage = 1000
)

// DeadLetters lists the selected dead letters, oldest first. A bad filter is an
// error that names the field.
func (in *Inbox[Tx]) DeadLetters(ctx context.Context, filter Filter) ([]DeadLetter, error) {
	if err := cmp.Or(in.unusable(), filter.validate()); err != nil {
		return nil, err
	}
	if filter.Limit == 0 {
		filter.Limit = listLimit
	}
	return in.store.DeadLetters(ctx, in.consumer, filter)
}

// Redrive runs the selected dead letters through the handler, oldest first, each
// in one transaction with its removal; each is tried once per call. Letters that
// are written while it works are selected too if it sees them. It may miss one that
// was committed late, because letters are numbered when they are written and not
// when they become visible: with ParkKey, redrive until nothing is Selected. A bulk
// handler gets one message at a time.
//
// A letter whose handler fails stays, with the error and one attempt more; with
// ParkKey the later ones of its key are Blocked. Redrive goes on with the others.
// It returns an error, with the counts so far, when the store is unavailable or
// ctx ends. If the error is idempotency.ErrCommitUnknown, the letter that
// was at work is redriven if it is gone.
//
// Letters of messages without an ID are left out, and not counted, unless
// filter.Reason is ReasonMissingID or filter.Numbers names them: nothing recognises
// a second copy of such a message, which would be handled twice, and the handler
// finds m.ID empty. Look at them first. With ParkKey, what waits behind one is
// Blocked until it is redriven or discarded.
//
// A letter may wait longer than Retention, its record does not: if the producer may
// have sent the ID again after that, it was handled as new, and a redrive handles it
// once more. Nor does a redrive leave a record by which a later copy would be a
// duplicate. Discard such a letter if its message came again; Filter.Before selects
// by age.
//
// The handler's timeout applies to each call; MaxAttempts and Retention do not.
func (in *Inbox[Tx]) Redrive(ctx context.Context, filter Filter, mode Mode) (RedriveResult, error) {
	var result RedriveResult
	if err := in.unusable(); err != nil {
		return result, err
	}
	began := time.Now()
	blocked := parkedKeys{}
	rewritten := map[delivery]bool{}
	err := in.eachRedrivable(ctx, filter, func(letter *DeadLetter) error {
		if letter.Reason == ReasonUnfinished && rewritten[deliveryOf(letter)] {
			return nil // tried already, and written again by this call
		}
		result.Selected++
		if mode == DryRun {
			return nil
		}
		if letter.ParksKey && blocked.has(&letter.Message) {
			result.Blocked++
			return nil
		}
		end, err := in.redrive(ctx, letter)
		if err != nil {
			return err
		}
		switch end {
		case redriven:
			result.Redriven++
		case gone:
			result.Gone++
		case blockedByOlder:
			result.Blocked++
		case failed, failedAndRewritten:
			result.Failed++
		}
		if letter.ParksKey && end != redriven && end != gone {
			blocked.add(&letter.Message)
		}
		if end == failedAndRewritten {
			rewritten[deliveryOf(letter)] = true
		}
		return nil
	})
	in.noteStore(ctx, began, err)
	return result, err
}

// Discard deletes the selected dead letters for good and returns how many it
// deleted, or would in a DryRun. Keys that nothing waits behind any more are free.
// Their records stay, so that a redelivery is still a duplicate.
func (in *Inbox[Tx]) Discard(ctx context.Context, filter Filter, mode Mode) (int, error) {
	began, total := time.Now(), 0
	err := in.eachPage(ctx, filter, nil, func(letters []DeadLetter) error {
		if mode == DryRun {
			total += len(letters)
			return nil
		}
		page := Filter{Numbers: make([]int64, len(letters)), Limit: len(letters)}
		for i := range letters {
			page.Numbers[i] = letters[i].Number
		}
		n := 0
		err := in.retryConflicts(ctx, func() (err error) {
			n, err = in.store.DiscardDeadLetters(ctx, in.consumer, page)
			return err
		})
		if err != nil {
			if err := in.interruption(ctx, err); err != nil {
				return err
			}
			return fmt.Errorf("inbox: discarding dead letters: %w", err)
		}
		if n > 0 {
			in.report(ctx, Event{Kind: EventDiscarded, Count: n})
		}
		total += n
		return nil
	})
	in.noteStore(ctx, began, err)
	return total, err
}

// eachRedrivable visits the selected dead letters in the order of their numbers,
// except those that must be asked for.
func (in *Inbox[Tx]) eachRedrivable(ctx context.Context, filter Filter, visit func(*DeadLetter) error) error {
	var leaveOut func(DeadLetter) bool
	if filter.Reason != ReasonMissingID && filter.Numbers == nil {
		// By ID, not by reason: such a letter may also be unfinished.
		leaveOut = func(letter DeadLetter) bool { return letter.Message.ID == "" }
	}
	return in.eachPage(ctx, filter, leaveOut, func(letters []DeadLetter) error {
		for i := range letters {
			if err := visit(&letters[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachPage visits the selected dead letters, without their payloads, in the order
// of their numbers, up to the filter's limit or until a page is empty. Those for
// which leaveOut is true do not count; nil: all do.
func (in *Inbox[Tx]) eachPage(ctx context.Context, filter Filter, leaveOut func(DeadLetter) bool, visit func([]DeadLetter) error) error {
	if err := cmp.Or(in.unusable(), filter.validate()); err != nil {
		return err
	}
	page := filter
	page.Brief = true
	for left := filter.Limit; ; {
		page.Limit = letterPage
		if filter.Limit > 0 && leaveOut == nil {
			page.Limit = min(page.Limit, left)
		}
		letters, err := in.store.DeadLetters(ctx, in.consumer, page)
		if err != nil {
			if err := in.interruption(ctx, err); err != nil {
				return err
			}
			return fmt.Errorf("inbox: listing dead letters: %w", err)
		}
		if len(letters) == 0 {
			return nil
		}
		for i := range letters {
			if letters[i].Number <= page.After {
				// Going on would redrive it for ever.
				return fmt.Errorf("inbox: the store returned dead letter %d after %d: it does not honour Filter.After", letters[i].Number, page.After)
			}
			page.After = letters[i].Number
		}
		if leaveOut != nil {
			letters = slices.DeleteFunc(letters, leaveOut)
		}
		if filter.Limit > 0 {
			letters = letters[:min(left, len(letters))]
		}
		if err := visit(letters); err != nil {
			return err
		}
		if left -= len(letters); left == 0 && filter.Limit > 0 {
			return nil
		}
	}
}
