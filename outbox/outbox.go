package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Outbox writes events in the caller's transaction. It is safe for concurrent use.
type Outbox[Tx any] struct {
	options

	store   Store[Tx]
	invalid error
}

// New returns an outbox on store. A bad argument or option is reported by Check and
// by every Publish.
func New[Tx any](store Store[Tx], list ...Option) *Outbox[Tx] {
	o := &Outbox[Tx]{options: newOptions(list), store: store}
	o.invalid = o.validate(store != nil)
	return o
}

var errNotMade = errors.New("outbox: this *Outbox is nil or empty: make it with outbox.New")

func (o *Outbox[Tx]) unusable() error {
	if o == nil || o.store == nil && o.invalid == nil {
		return errNotMade
	}
	return o.invalid
}

// Check returns nil if the outbox can be used: its options are valid, and the store
// answers and is migrated.
func (o *Outbox[Tx]) Check(ctx context.Context) error {
	if err := o.unusable(); err != nil {
		return err
	}
	return o.store.Check(ctx)
}

// Publish writes events in tx, in one statement. They are published if tx commits, and
// only then. Those with the same topic and key are published in the order of their Publish
// if the transactions wait for each other, as writers of one row do.
//
// All messages are checked first; if one is bad nothing is written, and the error says
// which and why. An error of the store may leave tx good for nothing but a rollback.
// Publish keeps nothing of messages and changes nothing in them: who needs the IDs
// sets them, with NewID.
func (o *Outbox[Tx]) Publish(ctx context.Context, tx Tx, messages ...Message) error {
	if err := o.unusable(); err != nil {
		return err
	}
	if len(messages) == 0 {
		return nil
	}
	if v := reflect.ValueOf(&tx).Elem(); (v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer) && v.IsNil() {
		return errors.New("outbox: tx is nil: pass the transaction that the events belong to")
	}
	var added []Header
	if o.contextHeaders != nil {
		added = o.contextHeaders(ctx)
		for i := range added {
			if err := validateHeader(added[i].Name); err != nil {
				return fmt.Errorf("outbox: ContextHeaders: header %d: %w", i, err)
			}
		}
	}
	complete := slices.Clone(messages)
	for i := range complete {
		m := &complete[i]
		if m.ID == "" {
			m.ID = NewID()
		}
		m.addHeaders(added)
		if err := m.validate(o.maxBytes); err != nil {
			return fmt.Errorf("outbox: message %d of %d: %w", i+1, len(complete), err)
		}
	}
	if err := o.store.Append(ctx, tx, complete); err != nil {
		return fmt.Errorf("outbox: publishing %d messages: %w", len(complete), err)
	}
	return nil
}

// addHeaders adds those whose name the message does not have.
func (m *Message) addHeaders(added []Header) {
	own := m.Headers
	for _, header := range added {
		if !slices.ContainsFunc(own, func(h Header) bool { return h.Name == header.Name }) {
			// Clipped: what the caller's array has behind the slice is not ours.
			m.Headers = append(slices.Clip(m.Headers), header)
		}
	}
}
