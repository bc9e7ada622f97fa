package inbox_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// inPlace changes all that a handler gets, as one does that decrypts in place.
func inPlace(m inbox.Message) {
	flip := func(b []byte) {
		for i := range b {
			b[i] ^= 0xff
		}
		_ = append(b, "beyond its end"...)
	}
	flip(m.Key)
	flip(m.Payload)
	for i := range m.Headers {
		flip(m.Headers[i].Value)
		m.Headers[i].Name = "changed"
	}
	_ = append(m.Headers, inbox.Header{Name: "more"})
}

func sealed(id string) inbox.Message {
	m := message(id)
	m.Key = []byte("key")
	m.Headers = []inbox.Header{{Name: "nonce", Value: []byte("1")}, {Name: "none"}, {Name: "empty", Value: []byte{}}}
	return m
}

func TestHandlerMayChangeWhatItGets(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*testing.T, ...inbox.Option) *fixture{"one": setup, "bulk": setupBulk} {
		for _, batch := range []int{1, 3} {
			f := setup(t, inbox.Batch(batch), inbox.FingerprintPayload(), inbox.MaxAttempts(2))
			conflicts := 1
			broken := true
			f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
				if !reflect.DeepEqual(m, sealed(m.ID)) {
					t.Errorf("%s, batch of %d: the handler got %+v", name, batch, m)
				}
				inPlace(m)
				switch {
				case m.ID == "a" && conflicts > 0:
					conflicts--
					return idempotency.ErrConflict
				case m.ID == "b" && broken:
					return errHandler
				}
				return nil
			}
			ms := []inbox.Message{sealed("a"), sealed("b"), sealed("c")}
			f.wantOutcomes(f.process(ms...), "processed, failed, not run")
			f.wantOutcomes(f.process(ms...), "duplicate, parked, processed")
			f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Failed: 1})
			if got := f.store.letters[0].Message; !reflect.DeepEqual(got, sealed("b")) {
				t.Errorf("%s, batch of %d: the letter holds %+v", name, batch, got)
			}
			f.wantOutcomes(f.process(ms...), "duplicate, duplicate, duplicate")
			broken = false
			f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Redriven: 1})
		}
	}
}

func TestLetterThatIsWrittenAgainIsAsItWas(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(sealed("a"))
	f.on = func(_ context.Context, tx *fakeTx, m inbox.Message) error {
		inPlace(m)
		tx.Commit()
		return errors.New("too late")
	}
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Failed: 1})
	if got := f.store.letters[0].Message; !reflect.DeepEqual(got, sealed("a")) {
		t.Errorf("the letter holds %+v", got)
	}
}
