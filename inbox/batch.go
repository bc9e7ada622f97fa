package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// batch is what one transaction does with its messages. It belongs to the
// goroutine of the transaction until that has ended.
type batch[Tx any] struct {
	*transaction

	in       *Inbox[Tx]
	now      time.Time
	messages []Message
	settled  []settled
}

// settled is what became of a message whose transaction was committed. A
// reason says that it is set aside.
type settled struct {
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
	default:
		return nil // the handler's own error says it
	}
}

// run is the work of Store.Atomic.
func (b *batch[Tx]) run(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) error {
	handlerCtx, cancel := b.handlerContext(ctx)
	defer cancel(nil)

	parked, err := b.parkedKeys(ctx, tx, verdicts)
	if err != nil {
		return err
	}
	var letters []DeadLetter
	var fresh []Message // for the bulk handler, which may keep them
	for i := range b.messages {
		m := &b.messages[i]
		switch verdicts[i] {
		case idempotency.Duplicate:
			b.settled[i].outcome = Duplicate
			continue
		case idempotency.Reused:
			// It is recorded under another key, which needs another claim.
			return errIDReused
		case idempotency.Fresh:
		}
		if reason := b.unfit(m, parked); reason != "" {
			b.settled[i] = settled{Parked, reason}
			letters = append(letters, b.in.letter(m, reason, reason.err(), 0))
			parked.add(m)
			continue
		}
		b.settled[i].outcome = Processed
		if b.in.bulk != nil {
			if fresh == nil {
				fresh = make([]Message, 0, len(b.messages)-i)
			}
			fresh = append(fresh, *m)
		} else if err := b.in.call(handlerCtx, b.transaction, tx, m); err != nil {
			return err
		}
	}
	if len(fresh) > 0 {
		if err := b.in.callBulk(handlerCtx, b.transaction, tx, fresh); err != nil {
			return err
		}
	}
	if len(letters) > 0 {
		if err := b.in.store.AddDeadLetters(ctx, tx, letters); err != nil {
			return err
		}
	}
	b.finish()
	return nil
}

// unfit returns why a new message must not be handled, or "".
func (b *batch[Tx]) unfit(m *Message, parked parkedKeys) Reason {
	switch {
	case m.ID == "":
		return ReasonMissingID
	case !m.Time.IsZero() && b.now.Sub(m.Time) > b.in.retention:
		return ReasonTooOld
	case parked.has(m):
		return ReasonBehind
	}
	return ""
}

// call runs the handler on one message.
func (in *Inbox[Tx]) call(ctx context.Context, t *transaction, tx Tx, m *Message) (err error) {
	if in.bulk != nil {
		return in.callBulk(ctx, t, tx, []Message{*m})
	}
	if err := t.enter(m); err != nil {
		return err
	}
	defer t.leave(&err)
	return in.handler(ctx, tx, *m)
}

func (in *Inbox[Tx]) callBulk(ctx context.Context, t *transaction, tx Tx, messages []Message) (err error) {
	if err := t.enter(&messages[0]); err != nil {
		return err
	}
	defer t.leave(&err)
	return in.bulk(ctx, tx, messages)
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
		letter.Error = errorText(cause)
	}
	return letter
}
