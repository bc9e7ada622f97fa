package badinput

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

// strangeIDs are ids that PostgreSQL's text or index would refuse, and pairs that must not be taken for each other.
func strangeIDs() []string {
	long := strings.Repeat("x", 10<<10)
	return []string{
		long, long[:len(long)-1] + "y", // differ in the last of 10 KB
		strings.Repeat("x", 512), strings.Repeat("x", 513),
		"\xff\xfe", "\xff\xfd", "\xef\xbf\xbd", // not UTF-8, and what they turn into when made so
		"a\x00b", "a\x00c", "a", "ab", "\x00", // NUL, and what is left when it is cut off
		"sha256:" + strings.Repeat("0", 64), // the shape of a stored hash
		" ", "\n", "'; DROP TABLE effect; --", "{}", `{"a"}`, "NULL", `\`, `"`, ",",
	}
}

func TestStrangeIDsAreTakenByteForByte(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]inbox.Option{"one by one": nil, "batch": {inbox.Batch(50)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			var sent []message
			want := map[string]int{}
			for range 2 { // each once more, behind all the others
				for _, strange := range strangeIDs() {
					sent = append(sent, message{id: id(strange), payload: []byte("{}")})
					want[strange] = 1
				}
			}
			s.run(write, sent, options...)
			s.wantEffects(want)
			s.wantLetters("")
		})
	}
}

func TestStrangeIDsAreSetAsideByteForByte(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var sent []message
	for _, strange := range strangeIDs() {
		sent = append(sent, message{id: id(strange), payload: []byte("{}")})
	}
	s.run(unlessNext(refuse), slices.Concat(sent, sent)) // each once more, behind all the others
	s.wantLetters(inbox.ReasonPermanent, sent...)
}

func TestMissingAndEmptyIDsAreSetAside(t *testing.T) {
	t.Parallel()
	s := newService(t)
	missing := message{key: []byte("k"), payload: []byte("no id"), headers: []kafka.Header{{Key: "other", Value: []byte("v")}}}
	empty := message{key: []byte("k"), payload: []byte("empty id"), id: []byte{}}
	s.run(write, []message{missing, empty, missing})
	// The same content at two places is two messages: without an id nobody can tell.
	letters := s.wantLetters(inbox.ReasonMissingID, missing, empty, missing)
	for _, l := range letters {
		for _, phrase := range []string{"no ID", "producer must set one", "Identity.Missing"} {
			if !strings.Contains(l.Error, phrase) {
				t.Errorf("the error does not say %q: %s", phrase, l.Error)
			}
		}
	}
}

// hostile holds every byte, NULs included, in every part of a message.
func hostile() []message {
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	return []message{
		{id: id("1"), key: all, payload: all, headers: []kafka.Header{{Key: string(all), Value: all}}},
		{id: id("2"), key: []byte{0}, payload: []byte{0}, headers: []kafka.Header{{Key: "\x00", Value: []byte{0}}, {Key: "a\x00b", Value: []byte("v")}}},
		{id: id("3"), key: []byte{}, payload: []byte{}, headers: []kafka.Header{{Key: "", Value: []byte{}}, {Key: "null", Value: nil}}},
		{id: id("4")}, // a tombstone
		{id: id("5"), key: []byte("\xff"), payload: []byte("\xff"), headers: []kafka.Header{{Key: "\xff", Value: []byte("\xff")}}},
		{id: id("6"), headers: []kafka.Header{{Key: "same", Value: []byte("1")}, {Key: "Same", Value: []byte("2")}, {Key: "same", Value: []byte("3")}}},
		{id: id("7"), payload: []byte(`\x00\u0000 {"json": "\u0000"}`), headers: []kafka.Header{{Key: `\u0000`, Value: []byte(`\u0000`)}}},
	}
}

func TestHostileBytesReachTheHandler(t *testing.T) {
	t.Parallel()
	s := newService(t)
	sent := hostile()
	got := map[string]inbox.Message{}
	s.run(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		got[m.ID] = m
		return write(ctx, tx, m)
	}, sent)
	for _, want := range sent {
		s.wantBytes(got[string(want.id)], want)
		s.wantEffects(map[string]int{string(want.id): 1})
	}
}

func TestHostileBytesAreSetAsideAndRedriven(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]inbox.Option{"plain": nil, "ParkKey": {inbox.ParkKey()}, "FingerprintPayload": {inbox.FingerprintPayload()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			sent := hostile()
			refusing := true
			redriven := map[string]inbox.Message{}
			s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if refusing {
					return refuse(ctx, tx, m)
				}
				redriven[m.ID] = m
				return write(ctx, tx, m)
			}), sent, options...)
			s.wantLetters(inbox.ReasonPermanent, sent...)

			refusing = false
			result, err := s.inbox.Redrive(t.Context(), inbox.Filter{}, inbox.Apply)
			if err != nil || result.Redriven != len(sent) {
				t.Fatalf("redrive: %+v, %v", result, err)
			}
			for _, want := range sent {
				s.wantBytes(redriven[string(want.id)], want)
				s.wantEffects(map[string]int{string(want.id): 1})
			}
			s.wantLetters("")
		})
	}
}

// big is far beyond every default: the fetch's 2 MiB.
func big() message {
	payload := bytes.Repeat([]byte("0123456789abcdef"), 20<<20/16)
	payload[len(payload)-1] = 0
	return message{id: id("big"), key: []byte("k"), payload: payload}
}

// TestPayloadOfTwentyMegabytes comes through alone, and is set aside whole.
func TestPayloadOfTwentyMegabytes(t *testing.T) {
	t.Parallel()
	s := newService(t, "max.message.bytes=33554432")
	handled, refused := big(), big()
	refused.id = id("refused")
	var sum [sha256.Size]byte
	s.run(unlessNext(func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if m.ID == "refused" {
			return refuse(ctx, tx, m)
		}
		sum = sha256.Sum256(m.Payload)
		return write(ctx, tx, m)
	}), []message{handled, refused})
	if sum != sha256.Sum256(handled.payload) {
		t.Error("the payload changed on its way to the handler")
	}
	s.wantEffects(map[string]int{"big": 1, "refused": 0})
	s.wantLetters(inbox.ReasonPermanent, refused)
}

func TestHostileErrorTextIsStored(t *testing.T) {
	t.Parallel()
	s := newService(t)
	bad := message{id: id("bad"), payload: []byte("{}")}
	s.run(unlessNext(func(context.Context, pgx.Tx, inbox.Message) error {
		return inbox.Permanent(hostileError{})
	}), []message{bad})
	letters := s.wantLetters(inbox.ReasonPermanent, bad)
	if got := letters[0].Error; !strings.HasPrefix(got, "began") || len(got) > 8<<10 || len(got) < 8<<10-10 {
		t.Errorf("the error stands as %d bytes: %.80q", len(got), got)
	}
}

// hostileError is as long, binary and NUL-ridden as an error can be.
type hostileError struct{}

func (hostileError) Error() string {
	return "began \x00\xff\xfe" + strings.Repeat("\xe4\xb8\x96", 1<<20)
}
