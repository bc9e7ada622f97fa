package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onceward/onceward/outbox"
)

func TestPublishWritesInTheTransaction(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	events := outbox.New(store)
	tx := store.Begin()
	messages := []outbox.Message{
		{Topic: "orders", Key: []byte("k"), Payload: []byte("p"), Headers: []outbox.Header{{Name: "a", Value: []byte("1")}, {Name: "a"}}},
		{ID: "own", Topic: "orders"},
	}
	if err := events.Publish(t.Context(), tx, messages...); err != nil {
		t.Fatal(err)
	}
	if len(tx.events) != 2 || tx.events[1].ID != "own" || len(tx.events[0].ID) != 36 || len(tx.events[0].Headers) != 2 {
		t.Errorf("appended %+v", store.appended)
	}
	if messages[0].ID != "" {
		t.Error("the caller's message was changed")
	}
	if n := store.count("Append"); n != 1 {
		t.Errorf("%d statements", n)
	}
	if err := events.Publish(t.Context(), tx); err != nil || store.count("Append") != 1 {
		t.Errorf("no messages: %v, %d statements", err, store.count("Append"))
	}
}

func TestPublishReportsWhatTheStoreSays(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	ended := errors.New("transaction has ended")
	store.faults(func(context.Context, string) error { return ended }, nil)
	err := outbox.New(store).Publish(t.Context(), store.Begin(), outbox.Message{Topic: "t"})
	if !errors.Is(err, ended) {
		t.Errorf("Publish returned %v", err)
	}
}

func TestPublishRefusesBadMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 513)
	headers := func(name string) []outbox.Header { return []outbox.Header{{Name: "fine"}, {Name: name}} }
	for name, c := range map[string]struct {
		bad  outbox.Message
		want []string
	}{
		"no topic":          {outbox.Message{Payload: []byte("secret")}, []string{"topic is empty"}},
		"long topic":        {outbox.Message{Topic: long}, []string{"topic of 513 bytes", "512"}},
		"topic of bytes":    {outbox.Message{Topic: "a\xff"}, []string{"topic of 2 bytes", "UTF-8"}},
		"topic with NUL":    {outbox.Message{Topic: "a\x00"}, []string{"topic of 2 bytes", "NUL"}},
		"long ID":           {outbox.Message{Topic: "t", ID: long}, []string{"ID of 513 bytes", "512"}},
		"ID of bytes":       {outbox.Message{Topic: "t", ID: "\xff"}, []string{"ID of 1 bytes", "UTF-8"}},
		"ID with NUL":       {outbox.Message{Topic: "t", ID: "\x00"}, []string{"ID of 1 bytes", "NUL"}},
		"nameless header":   {outbox.Message{Topic: "t", Headers: headers("")}, []string{"header 1", "empty"}},
		"header of bytes":   {outbox.Message{Topic: "t", Headers: headers("\xff")}, []string{"header 1", "UTF-8"}},
		"header with NUL":   {outbox.Message{Topic: "t", Headers: headers("a\x00")}, []string{"header 1", "NUL"}},
		"header of the ID":  {outbox.Message{Topic: "t", Headers: headers("Onceward-ID")}, []string{"header 1", "onceward-id", "Message.ID"}},
		"payload too large": {outbox.Message{Topic: "t", Payload: make([]byte, 1_000_001)}, []string{"payload of 1000001 bytes", "1000000", "MaxBytes"}},
		"a key of a MB":     {outbox.Message{Topic: "t", Key: []byte(strings.Repeat("secret", 200_000))}, []string{"key of 1200000", "1000000"}},
		"together too large": {
			outbox.Message{Topic: "t", Key: make([]byte, 500_000), Payload: make([]byte, 499_980), Headers: headers("a")},
			[]string{"headers of 21 are 1000001"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			good := outbox.Message{Topic: "t"}
			err := outbox.New(store).Publish(t.Context(), store.Begin(), good, c.bad, good)
			if err == nil || store.count("Append") != 0 {
				t.Fatalf("Publish returned %v, after %d statements", err, store.count("Append"))
			}
			for _, part := range append(c.want, "message 2 of 3") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if len(err.Error()) > 400 || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q shows content", err)
			}
		})
	}
}

func TestPublishTakesWhatIsJustSmallEnough(t *testing.T) {
	t.Parallel()
	store := newFakeStore()
	text := strings.Repeat("é", 256)
	m := outbox.Message{ID: text, Topic: text, Key: make([]byte, 40), Payload: make([]byte, 42), Headers: []outbox.Header{{Name: "name", Value: []byte("values")}}}
	if err := outbox.New(store, outbox.MaxBytes(100)).Publish(t.Context(), store.Begin(), m); err != nil {
		t.Error(err)
	}
	if err := outbox.New(store, outbox.MaxBytes(99)).Publish(t.Context(), store.Begin(), m); err == nil {
		t.Error("one byte too many was taken")
	}
}

func TestContextHeadersGoAlong(t *testing.T) {
	t.Parallel()
	type traceKey struct{}
	store := newFakeStore()
	events := outbox.New(store, outbox.ContextHeaders(func(ctx context.Context) []outbox.Header {
		return []outbox.Header{{Name: "traceparent", Value: []byte(ctx.Value(traceKey{}).(string))}, {Name: "baggage"}}
	}))
	ctx := context.WithValue(t.Context(), traceKey{}, "00-abc")
	array := []outbox.Header{{Name: "baggage", Value: []byte("mine")}, {}}
	own := array[:1]
	tx := store.Begin()
	if err := events.Publish(ctx, tx, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t", Headers: own}); err != nil {
		t.Fatal(err)
	}
	names := func(headers []outbox.Header) (names []string) {
		for _, h := range headers {
			names = append(names, h.Name+"="+string(h.Value))
		}
		return names
	}
	if got := names(tx.events[0].Headers); !slices.Equal(got, []string{"traceparent=00-abc", "baggage="}) {
		t.Errorf("headers %q", got)
	}
	if got := names(tx.events[1].Headers); !slices.Equal(got, []string{"baggage=mine", "traceparent=00-abc"}) {
		t.Errorf("headers %q", got)
	}
	if array[1].Name != "" {
		t.Errorf("the caller's array was written to: %q", array[1].Name)
	}

	bad := outbox.New(store, outbox.ContextHeaders(func(context.Context) []outbox.Header { return []outbox.Header{{Name: outbox.HeaderID}} }))
	if err := bad.Publish(ctx, tx, outbox.Message{Topic: "t"}); err == nil || !strings.Contains(err.Error(), "ContextHeaders") {
		t.Errorf("Publish returned %v", err)
	}
}

func TestBadOptionsAreReported(t *testing.T) {
	t.Parallel()
	var none *outbox.Outbox[*fakeTx]
	for want, events := range map[string]*outbox.Outbox[*fakeTx]{
		"MaxBytes(0)":        outbox.New(newFakeStore(), outbox.MaxBytes(0), nil),
		"MaxBytes(67108865)": outbox.New(newFakeStore(), outbox.MaxBytes(outbox.MaxEventBytes+1)),
		"store is nil":       outbox.New[*fakeTx](nil),
		"outbox.New":         none,
		"nil or empty: ":     {},
	} {
		for doing, err := range map[string]error{
			"Check":   events.Check(t.Context()),
			"Publish": events.Publish(t.Context(), nil, outbox.Message{Topic: "t"}),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s returned %v, want %q", doing, err, want)
			}
		}
	}
	if err := outbox.New(newFakeStore()).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoTransactionIsAnError(t *testing.T) {
	t.Parallel()
	err := outbox.New(newFakeStore()).Publish(t.Context(), nil, outbox.Message{Topic: "t"})
	if err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("Publish returned %v", err)
	}
}

func TestNewIDsAreOrderedUUIDs(t *testing.T) {
	t.Parallel()
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = outbox.NewID()
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != 1000 || ids[0][14] != '7' {
		t.Errorf("IDs are %q …", ids[:3])
	}
}

func TestKeyHashTellsTopicsAndKeysApart(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range []struct{ topic, key string }{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", "bb"}, {"ab", "b"}} {
		hash := outbox.KeyHash(c.topic, []byte(c.key))
		if len(hash) != 32 || seen[hash] {
			t.Errorf("hash of %q is %q", c, hash)
		}
		seen[hash] = true
	}
}
