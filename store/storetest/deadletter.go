package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

const (
	consumer   = "billing"
	topic      = "orders"
	otherTopic = "refunds"
)

// letterOf is a plain dead letter whose message has this ID.
func letterOf(id string) inbox.DeadLetter {
	return inbox.DeadLetter{
		Consumer: consumer,
		Reason:   inbox.ReasonAttempts,
		Error:    "card service: timeout",
		Attempts: 5,
		Message: inbox.Message{
			ID: id, Source: "shop", Topic: topic, Payload: []byte("payload of " + id), Position: "orders/0/1",
		},
	}
}

// keyed is a dead letter of topic orders that parks its key.
func keyed(id, key string) inbox.DeadLetter {
	letter := letterOf(id)
	letter.Message.Key = []byte(key)
	letter.ParksKey = true
	return letter
}

func deadLetterRules[Tx any]() []rule[Tx] {
	return []rule[Tx]{
		{"EveryByteOfTheMessageComesBack", everyByteComesBack[Tx]},
		{"ReasonErrorAttemptsAndTimeComeBack", func(f *fixture[Tx]) {
			letter := letterOf("a")
			letter.Reason, letter.Error, letter.Attempts = inbox.ReasonPermanent, "line one\nline two: é €", 17
			f.add(letter)
			got := f.letters(consumer, inbox.Filter{})[0]
			if got.Consumer != consumer || got.Reason != letter.Reason || got.Error != letter.Error || got.Attempts != 17 || got.ParksKey {
				f.Errorf("got %+v", got)
			}
			// On the database's clock, which may differ a little from ours.
			if age := time.Since(got.CreatedAt).Abs(); age > time.Hour {
				f.Errorf("CreatedAt %v is %v away from now", got.CreatedAt, age)
			}
			if got.Number <= 0 {
				f.Errorf("Number is %d", got.Number)
			}
		}},
		{"AnyTextIsAnError", func(f *fixture[Tx]) {
			texts := []string{"", "nul \x00 inside", "not \xff UTF-8", strings.Repeat("é ", 100_000)}
			for _, text := range texts {
				letter := letterOf("a")
				letter.Error = text
				f.add(letter)
			}
			letters := f.letters(consumer, inbox.Filter{})
			if len(letters) != len(texts) {
				f.Fatalf("%d dead letters", len(letters))
			}
			for i, letter := range letters {
				// Whoever writes a letter bounds its error; a store keeps what it can hold.
				if plain := utf8.ValidString(texts[i]) && !strings.Contains(texts[i], "\x00"); plain && letter.Error != texts[i] {
					f.Errorf("error %.20q of %d bytes came back as %.20q of %d bytes", texts[i], len(texts[i]), letter.Error, len(letter.Error))
				}
			}
		}},
		{"LettersAreListedInTheOrderTheyWereAdded", func(f *fixture[Tx]) {
			f.add(letterOf("c"), letterOf("a"), letterOf("d"))
			f.add(letterOf("b"))
			f.add(letterOf("a"))
			f.wantLetters(consumer, "c", "a", "d", "b", "a")
			letters := f.letters(consumer, inbox.Filter{})
			for i := 1; i < len(letters); i++ {
				if letters[i].Number <= letters[i-1].Number {
					f.Fatalf("number %d follows %d", letters[i].Number, letters[i-1].Number)
				}
			}
		}},
		{"NumbersAreNeverGivenTwice", func(f *fixture[Tx]) {
			f.add(letterOf("a"), letterOf("b"))
			last := f.letters(consumer, inbox.Filter{})[1].Number
			f.discard(inbox.Filter{}, 2)
			f.add(letterOf("c"))
			if got := f.letters(consumer, inbox.Filter{})[0].Number; got <= last {
				f.Fatalf("number %d was given again after %d", got, last)
			}
		}},
		{"LettersOfARolledBackTransactionAreGone", func(f *fixture[Tx]) {
			err := f.store.Atomic(f.Context(), claimsOf("a"), func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
				if err := f.store.AddDeadLetters(ctx, tx, []inbox.DeadLetter{keyed("a", "k")}); err != nil {
					return err
				}
				return errWork
			})
			f.wantIs(err, errWork)
			f.wantLetters(consumer)
			f.wantParked(topic, "k", false)
		}},
		{"EachConsumerHasItsOwn", func(f *fixture[Tx]) {
			mine, theirs := keyed("mine", "k"), keyed("theirs", "other")
			theirs.Consumer = "shipping"
			f.add(mine, theirs)
			f.wantLetters(consumer, "mine")
			f.wantLetters("shipping", "theirs")
			f.wantLetters("nobody")
			f.wantParked(topic, "other", false)
			number := f.letters("shipping", inbox.Filter{})[0].Number
			err := f.store.TakeDeadLetter(f.Context(), consumer, number, func(context.Context, Tx, inbox.DeadLetter) error {
				f.Error("took the dead letter of another consumer")
				return nil
			})
			f.wantIs(err, inbox.ErrGone)
			f.discard(inbox.Filter{}, 1)
			f.wantLetters("shipping", "theirs")
		}},
	}
}

func strangeMessages() []inbox.Message {
	raw := "nul \x00 \xff\xfe \xed\xa0\x80 \u2028 é"
	hashed := "sha256:x" // What a stored form looks like.
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return []inbox.Message{
		{},
		{
			ID: "plain", Source: "s", Topic: "t", Key: []byte("k"), Payload: []byte(`{"n":1}`), Position: "t/0/7",
			Headers: []inbox.Header{{Name: "n", Value: []byte("v")}}, Time: time.Date(2024, 2, 29, 23, 59, 59, 123_456_789, time.UTC),
		},
		{
			ID: raw, Source: raw, Topic: raw, Key: []byte(raw), Payload: every, Position: raw,
			Headers: []inbox.Header{{Name: raw, Value: every}, {Name: "", Value: []byte(raw)}},
		},
		{ID: "nil", Topic: "t", Headers: []inbox.Header{{Name: "h"}}},
		{ID: "empty", Topic: "t", Key: []byte{}, Payload: []byte{}, Headers: []inbox.Header{{Name: "h", Value: []byte{}}}},
		{ID: "repeated", Topic: "t", Headers: []inbox.Header{
			{Name: "b", Value: []byte("1")}, {Name: "a", Value: nil}, {Name: "b", Value: []byte{}}, {Name: "B", Value: []byte("1")}, {Name: "b", Value: []byte("1")},
		}},
		{ID: strings.Repeat("long", 2560), Source: strings.Repeat("long", 2560), Topic: strings.Repeat("t", 10<<10), Key: bytes.Repeat([]byte("k"), 10<<10)},
		{ID: hashed, Source: hashed, Topic: hashed, Position: hashed},
		{ID: "hex", Source: `\x00`, Topic: `\\x`, Key: []byte(`\x6b`), Payload: []byte(`\x00`)},
		{ID: "old", Topic: "t", Time: time.Date(1969, 7, 20, 20, 17, 40, 999_999_000, time.UTC)},
		{ID: "zoned", Topic: "t", Time: time.Date(2030, 1, 1, 0, 0, 0, 1000, time.FixedZone("", 5*3600+1800))},
		{ID: "epoch", Topic: "t", Time: time.Unix(0, 0)},
		{ID: "large", Topic: "t", Payload: bytes.Repeat(every, 20<<20/len(every))},
	}
}

func everyByteComesBack[Tx any](f *fixture[Tx]) {
	want := strangeMessages()
	var letters []inbox.DeadLetter
	for _, message := range want {
		letter := letterOf("")
		letter.Message = message
		letters = append(letters, letter)
	}
	f.add(letters...)

	got := f.letters(consumer, inbox.Filter{})
	if len(got) != len(want) {
		f.Fatalf("%d of %d came back", len(got), len(want))
	}
	for i, letter := range got {
		if diff := difference(letter.Message, want[i]); diff != "" {
			f.Errorf("listed message %d (%.20q): %s", i, want[i].ID, diff)
		}
		err := f.store.TakeDeadLetter(f.Context(), consumer, letter.Number, func(_ context.Context, _ Tx, taken inbox.DeadLetter) error {
			if diff := difference(taken.Message, want[i]); diff != "" {
				f.Errorf("taken message %d (%.20q): %s", i, want[i].ID, diff)
			}
			if taken.Number != letter.Number || taken.Reason != letter.Reason || taken.Attempts != letter.Attempts || !taken.CreatedAt.Equal(letter.CreatedAt) {
				f.Errorf("taken letter %d is not the listed one", i)
			}
			return nil
		})
		if err != nil {
			f.Errorf("take message %d (%.20q): %v", i, want[i].ID, err)
		}
	}
}

// difference names the first field in which two messages differ. Nil and empty
// differ; times may be cut or rounded to the microsecond.
func difference(got, want inbox.Message) string {
	sameBytes := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	switch {
	case got.ID != want.ID:
		return fmt.Sprintf("ID is %.60q", got.ID)
	case got.Source != want.Source:
		return fmt.Sprintf("Source is %.60q", got.Source)
	case got.Topic != want.Topic:
		return fmt.Sprintf("Topic is %.60q", got.Topic)
	case got.Position != want.Position:
		return fmt.Sprintf("Position is %.60q", got.Position)
	case !sameBytes(got.Key, want.Key):
		return fmt.Sprintf("Key is %.60q (nil: %t)", got.Key, got.Key == nil)
	case !sameBytes(got.Payload, want.Payload):
		return fmt.Sprintf("Payload has %d bytes (nil: %t)", len(got.Payload), got.Payload == nil)
	case got.Time.IsZero() != want.Time.IsZero(), got.Time.Sub(want.Time).Abs() >= time.Microsecond:
		return fmt.Sprintf("Time is %v, want %v", got.Time, want.Time)
	case !slices.EqualFunc(got.Headers, want.Headers, func(a, b inbox.Header) bool {
		return a.Name == b.Name && sameBytes(a.Value, b.Value)
	}):
		return fmt.Sprintf("Headers are %q", got.Headers)
	}
	return ""
}

// add writes dead letters in a transaction without claims.
func (f *fixture[Tx]) add(letters ...inbox.DeadLetter) {
	f.Helper()
	if err := f.tryAdd(f.store, letters...); err != nil {
		f.Fatalf("add dead letters: %v", err)
	}
}

func (f *fixture[Tx]) tryAdd(store inbox.Store[Tx], letters ...inbox.DeadLetter) error {
	return store.Atomic(f.Context(), nil, func(ctx context.Context, tx Tx, _ []idempotency.Verdict) error {
		return store.AddDeadLetters(ctx, tx, letters)
	})
}

// limited has a limit, as every filter that reaches a store.
func limited(filter inbox.Filter) inbox.Filter {
	if filter.Limit == 0 {
		filter.Limit = 1000
	}
	return filter
}

func (f *fixture[Tx]) letters(consumer string, filter inbox.Filter) []inbox.DeadLetter {
	f.Helper()
	letters, err := f.store.DeadLetters(f.Context(), consumer, limited(filter))
	if err != nil {
		f.Fatalf("list dead letters: %v", err)
	}
	return letters
}

func idsOf(letters []inbox.DeadLetter) []string {
	ids := []string{}
	for _, letter := range letters {
		ids = append(ids, letter.Message.ID)
	}
	return ids
}

func (f *fixture[Tx]) wantLetters(consumer string, ids ...string) {
	f.Helper()
	if got := idsOf(f.letters(consumer, inbox.Filter{})); !slices.Equal(got, ids) {
		f.Fatalf("dead letters of %s: %q, want %q", consumer, got, ids)
	}
}

func (f *fixture[Tx]) discard(filter inbox.Filter, want int) {
	f.Helper()
	got, err := f.store.DiscardDeadLetters(f.Context(), consumer, limited(filter))
	if err != nil || got != want {
		f.Fatalf("discarded %d dead letters, error %v, want %d", got, err, want)
	}
}

// errGiveUp ends a transaction that only looked.
var errGiveUp = errors.New("only looked")
