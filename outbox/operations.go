package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

const (
	// listLimit bounds a list whose caller set no bound: its payloads are all
	// in memory at once.
	listLimit = 1000

	// operationPage is how many dead letters are redriven or discarded in one transaction.
	operationPage = 1000

	// countLimit bounds the events that Status counts for each lane: counting costs
	// a look at each.
	countLimit = 10_000
)

// Operator looks at relays and changes what they do, from any process. It is safe
// for concurrent use. What it changes reaches running instances within a quarter of
// their lease, or with their next write.
type Operator struct{ store OperatorStore }

// NewOperator returns an operator of the relays of a store.
func NewOperator(store OperatorStore) *Operator { return &Operator{store} }

// Status describes all relays: who runs them, and how far they are. Of each lane it
// counts at most 10,000 events that wait.
func (o *Operator) Status(ctx context.Context) ([]RelayStatus, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	status, err := o.store.Relays(ctx, countLimit)
	return status, operation("describing relays", err)
}

// Holders returns the transactions that have written and are still open, oldest
// first: events of theirs are not visible yet.
func (o *Operator) Holders(ctx context.Context) ([]Holder, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	holders, err := o.store.Holders(ctx)
	return holders, operation("looking for open transactions", err)
}

// ReplayFrom has a relay publish the event with this number and all later ones again,
// those it has set aside as well. Readers that know their IDs drop the copies. Numbers
// up to 1 mean the whole log, as far as it was kept. ErrNoEvent: the log has not come so
// far, and nothing would be published again.
func (o *Operator) ReplayFrom(ctx context.Context, relay string, number int64) error {
	if err := o.of(relay); err != nil {
		return err
	}
	return operation(fmt.Sprintf("replaying relay %q from event %d", relay, number), o.store.Replay(ctx, relay, max(number, 1)))
}

// ReplaySince is ReplayFrom with the first event written at or after t, by the
// store's clock. It returns the number of that event, or the next one to be given if there
// is none.
func (o *Operator) ReplaySince(ctx context.Context, relay string, t time.Time) (int64, error) {
	if err := o.of(relay); err != nil {
		return 0, err
	}
	number, err := o.store.FirstSince(ctx, t)
	if err != nil {
		return 0, operation(fmt.Sprintf("looking for the first event since %v", t), err)
	}
	return number, o.ReplayFrom(ctx, relay, number)
}

// Skip has a relay pass an event without publishing it, set aside or not. ErrPassed:
// the relay has passed it already. ErrNoEvent: no event has this number, or none that is
// committed and not pruned.
func (o *Operator) Skip(ctx context.Context, relay string, number int64) error {
	if err := cmp.Or(o.of(relay), validateNumber(number)); err != nil {
		return err
	}
	return operation(fmt.Sprintf("skipping event %d of relay %q", number, relay), o.store.Skip(ctx, relay, number))
}

// SetAside lists selected events that a relay has set aside, by number.
func (o *Operator) SetAside(ctx context.Context, relay string, filter Filter) ([]AsideEvent, error) {
	if err := cmp.Or(o.of(relay), filter.validate()); err != nil {
		return nil, err
	}
	if filter.Limit == 0 {
		filter.Limit = listLimit
	}
	list, err := o.store.SetAside(ctx, relay, filter)
	return list, operation(fmt.Sprintf("listing what relay %q has set aside", relay), err)
}

// Redrive has a relay publish selected dead letters again, and returns how many there
// were. Only Dead events are selected, whatever the filter's State; each once, even if it
// is dead again soon. With ParkKey what is behind them follows.
func (o *Operator) Redrive(ctx context.Context, relay string, filter Filter, mode Mode) (int, error) {
	return o.eachPage(ctx, "redriving", relay, filter, mode, o.redrive)
}

// Discard gives up selected dead letters for good, and returns how many there were.
// Only Dead events are selected. With ParkKey what is behind them is published.
func (o *Operator) Discard(ctx context.Context, relay string, filter Filter, mode Mode) (int, error) {
	return o.eachPage(ctx, "discarding", relay, filter, mode, o.discard)
}

func (o *Operator) redrive(ctx context.Context, relay string, page Filter) (int, error) {
	return o.store.Redrive(ctx, relay, page)
}

func (o *Operator) discard(ctx context.Context, relay string, page Filter) (int, error) {
	return o.store.Discard(ctx, relay, page)
}

// eachPage acts on the selected dead letters in the order of their numbers, a page in
// a transaction. Pages are named by their numbers: what is dead again meanwhile is not
// selected twice.
func (o *Operator) eachPage(ctx context.Context, doing, relay string, filter Filter, mode Mode,
	act func(ctx context.Context, relay string, page Filter) (int, error),
) (total int, err error) {
	if err := cmp.Or(o.of(relay), filter.validate()); err != nil {
		return 0, err
	}
	if filter.State != "" && filter.State != Dead {
		return 0, fmt.Errorf("outbox: Filter.State is %q: only events that are %q can be selected here; leave it empty", filter.State, Dead)
	}
	filter.State, filter.Brief = Dead, true
	doing = fmt.Sprintf("%s dead letters of relay %q", doing, relay)
	page := filter
	for left := filter.Limit; ; {
		page.Limit = operationPage
		if filter.Limit > 0 {
			page.Limit = min(page.Limit, left)
		}
		list, err := o.store.SetAside(ctx, relay, page)
		if err != nil {
			return total, operation(doing, err)
		}
		if len(list) == 0 {
			return total, nil
		}
		numbers := make([]int64, len(list))
		for i := range list {
			if numbers[i] = list[i].Aside.Number; numbers[i] <= page.After {
				// Going on would act on it for ever.
				return total, fmt.Errorf("outbox: the store returned event %d after %d: it does not honour Filter.After", numbers[i], page.After)
			}
			page.After = numbers[i]
		}
		n := len(list)
		if mode == Apply {
			if n, err = act(ctx, relay, Filter{Numbers: numbers, State: Dead, Limit: len(numbers)}); err != nil {
				return total, operation(doing, err)
			}
		}
		total += n
		if left -= len(list); left == 0 && filter.Limit > 0 {
			return total, nil
		}
	}
}

// ChangeLanes gives a relay another number of lanes, 1 to 1,024. Stop all its
// instances first (ErrRunning), and start them with the new number. What was
// published last is published again.
func (o *Operator) ChangeLanes(ctx context.Context, relay string, lanes int) error {
	if err := o.of(relay); err != nil {
		return err
	}
	if err := CheckLanes(lanes); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return operation(fmt.Sprintf("changing the lanes of relay %q to %d", relay, lanes), o.store.ChangeLanes(ctx, relay, lanes))
}

// Remove deletes a relay with its positions and all it has set aside; the log keeps
// nothing for it any more. Stop all its instances first (ErrRunning).
func (o *Operator) Remove(ctx context.Context, relay string) error {
	if err := o.of(relay); err != nil {
		return err
	}
	return operation(fmt.Sprintf("removing relay %q", relay), o.store.Remove(ctx, relay))
}

// of returns why nothing can be done with a relay of this name.
func (o *Operator) of(relay string) error {
	if err := o.usable(); err != nil {
		return err
	}
	if !relayName.MatchString(relay) {
		return fmt.Errorf("outbox: relay name of %d bytes does not match [A-Za-z0-9._-]{1,100}: pass RelayConfig.Name", len(relay))
	}
	return nil
}

func (o *Operator) usable() error {
	if o == nil || o.store == nil {
		return errors.New("outbox: this *Operator has no store: make it with outbox.NewOperator(store)")
	}
	return nil
}

func validateNumber(number int64) error {
	if number < 1 {
		return fmt.Errorf("outbox: event number is %d: numbers begin at 1; SetAside and the log tell them", number)
	}
	return nil
}

func (f Filter) validate() error {
	if f.Limit < 0 {
		return fmt.Errorf("outbox: Filter.Limit is %d: pass how many events to select at most, or 0 for no limit of your own", f.Limit)
	}
	switch f.State {
	case "", Delayed, Retrying, Behind, Dead, Skipped:
		return nil
	}
	return fmt.Errorf("outbox: Filter.State is %.20q: use one of the states of this package, or leave it empty for all", f.State)
}

// operation says what was being done.
func operation(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s: %w", doing, err)
}
