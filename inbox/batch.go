package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// batch is what one transaction does with its messages. It belongs to the series'
// goroutine until the transaction has ended, and for good if its handler was abandoned.
type batch[Tx any] struct {
	transaction

	in        *Inbox[Tx]
	messages  []Message
	claims    []idempotency.Claim
	decisions []decision

	// one is the memory of a batch of one message.
	one struct {
		claims    [1]idempotency.Claim
		decisions [1]decision
	}
}

func (in *Inbox[Tx]) newBatch(now time.Time, messages []Message, last *scoped) *batch[Tx] {
	b := &batch[Tx]{transaction: transaction{began: now}, in: in, messages: messages}
	if len(messages) == 1 {
		b.claims, b.decisions = b.one.claims[:], b.one.decisions[:]
	} else {
		b.claims, b.decisions = make([]idempotency.Claim, len(messages)), make([]decision, len(messages))
	}
	in.fillClaims(b.claims, messages, last)
	return b
}

// decision is what becomes of a message if its transaction is committed. A reason
// says that it is set aside.
type decision struct {
	outcome Outcome
	reason  Reason
}

// Why a message is set aside without an error of the handler.
var (
	errMissingID = errors.New("message has no ID: its producer must set one, or Identity.Missing must derive one")
	errTooOld    = errors.New("message is older than the retention: whether it was handled can't be told any more")
	errIDReused  = errors.New("message ID was used before for another payload")
	errBehind    = errors.New("an earlier message with the same key is set aside")
)

// cause is why a message is set aside, nil if it isn't.
func (d decision) cause(m *Message) error {
	if d.reason == ReasonMissingID && m.noID != nil {
		return m.noID
	}
	return d.reason.err()
}

func (r Reason) err() error {
	switch r {
	case ReasonMissingID:
		return errMissingID
	case ReasonTooOld:
		return errTooOld
	case ReasonIDReused:
		return errIDReused
	case ReasonBehind:
		return errBehind
	case ReasonAttempts, ReasonPermanent, ReasonUnfinished:
		return nil // the error of the handler or the transaction says it
	default:
		return nil
	}
}

// run is the work of Store.Atomic. Everything is decided, and the dead letters are
// written, before the first handler is called: none is called in vain, what a batch
// holds stands still while a handler may have to be abandoned, and no statement of
// the store meets a transaction that a handler has spoiled, as by an SQL error that
// it swallowed. That would look like an outage, which no message bears.
func (b *batch[Tx]) run(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
	handlerCtx, cancel := b.handlerContext(ctx)
	defer cancel(nil)

	letters, err := b.decide(ctx, tx, verdicts)
	if err != nil {
		return err
	}
	if len(letters) > 0 {
		if err := b.in.store.AddDeadLetters(ctx, tx, letters); err != nil {
			return err
		}
	}
	if err := b.handle(handlerCtx, tx); err != nil {
		return err
	}
	b.finish()
	return nil
}

// decide fills the decisions and returns the dead letters among them.
func (b *batch[Tx]) decide(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) ([]DeadLetter, error) {
	// These are recorded under another key, which needs another claim.
	if slices.Contains(verdicts, idempotency.Reused) {
		return nil, errIDReused
	}
	if b.in.unfinished.anyCommitted(b.claims, verdicts) {
		return nil, errUnfinished
	}
	parked, err := b.parkedKeys(ctx, tx, verdicts)
	if err != nil {
		return nil, err
	}
	var letters []DeadLetter
	for i := range b.messages {
		m := &b.messages[i]
		if verdicts[i] != idempotency.Fresh {
			b.decisions[i].outcome = Duplicate
			continue
		}
		reason := b.unfit(m, parked)
		if reason == "" {
			b.decisions[i].outcome = Processed
			continue
		}
		b.decisions[i] = decision{Parked, reason}
		letters = append(letters, b.in.letter(m, reason, b.decisions[i].cause(m), 0))
		parked.add(m)
	}
	return letters, nil
}

// handle calls the handler for the messages that are to be processed, in order.
func (b *batch[Tx]) handle(ctx context.Context, tx Tx) error {
	if b.in.bulk != nil {
		return b.handleBulk(ctx, tx)
	}
	for i, d := range b.decisions {
		if d.outcome != Processed {
			continue
		}
		if err := b.in.call(ctx, &b.transaction, tx, &b.messages[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch[Tx]) handleBulk(ctx context.Context, tx Tx) error {
	fresh := make([]Message, 0, len(b.messages)) // new each time: the handler may keep it
	var first *Message
	for i, d := range b.decisions {
		if d.outcome == Processed {
			first = cmp.Or(first, &b.messages[i])
			fresh = append(fresh, cloneMessage(&b.messages[i]))
		}
	}
	if first == nil {
		return nil
	}
	return b.in.callBulk(ctx, &b.transaction, tx, first, fresh)
}

// unfit returns why a new message must not be handled, or "".
func (b *batch[Tx]) unfit(m *Message, parked parkedKeys) Reason {
	switch {
	case m.ID == "":
		return ReasonMissingID
	case !m.Time.IsZero() && b.began.Sub(m.Time) > b.in.retention:
		return ReasonTooOld
	case parked.has(m):
		return ReasonBehind
	}
	return ""
}

// call runs the handler on a copy of one message: what the handler makes of it must
// not reach another run, the dead letter or the fingerprint.
func (in *Inbox[Tx]) call(ctx context.Context, t *transaction, tx Tx, m *Message) (err error) {
	own := cloneMessage(m) // before a handler is entered, since from there on Process may return
	if in.bulk != nil {
		return in.callBulk(ctx, t, tx, m, []Message{own})
	}
	if err := t.enter(m); err != nil {
		return err
	}
	err = errGoexit
	defer t.leave(&err)
	return in.handler(ctx, tx, own)
}

// callBulk runs the bulk handler on copies of messages, of which first is the first.
func (in *Inbox[Tx]) callBulk(ctx context.Context, t *transaction, tx Tx, first *Message, copies []Message) (err error) {
	if err := t.enter(first); err != nil {
		return err
	}
	err = errGoexit
	defer t.leave(&err)
	return in.bulk(ctx, tx, copies)
}

// letter is the dead letter of a message.
func (in *Inbox[Tx]) letter(m *Message, reason Reason, cause error, attempts int) DeadLetter {
	letter := DeadLetter{
		Consumer: in.consumer,
		Reason:   reason,
		Attempts: attempts,
		Message:  *m,
		ParksKey: in.parkKey && m.Key != nil,
	}
	if reason != ReasonBehind {
		letter.Error = errorText(cause, rowErrorBytes)
	}
	return letter
}
