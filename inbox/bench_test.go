package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// nullStore grants every claim and keeps nothing, so that what a benchmark
// counts is the inbox alone.
type nullStore struct{ *fakeStore }

func (nullStore) Atomic(ctx context.Context, claims []idempotency.Claim, work func(context.Context, *fakeTx, []idempotency.Verdict) error) error {
	verdicts := make([]idempotency.Verdict, len(claims))
	for i := range verdicts {
		verdicts[i] = idempotency.Fresh
	}
	return work(ctx, nil, verdicts)
}

// BenchmarkProcess reports the cost of a message, not of a batch. As an adapter
// does, "one by one" hands over many messages at a time; "batch=1" only one.
func BenchmarkProcess(b *testing.B) {
	each := func(context.Context, *fakeTx, inbox.Message) error { return nil }
	bulk := func(context.Context, *fakeTx, []inbox.Message) error { return nil }
	b.Run("one by one", func(b *testing.B) {
		in := inbox.New(nullStore{newFakeStore()}, "billing", each, inbox.Logger(slog.New(slog.DiscardHandler)))
		benchmarkProcess(b, in, 100)
	})
	for _, size := range []int{1, 100} {
		options := []inbox.Option{inbox.Batch(size), inbox.Logger(slog.New(slog.DiscardHandler))}
		for name, in := range map[string]*inbox.Inbox[*fakeTx]{
			"each":        inbox.New(nullStore{newFakeStore()}, "billing", each, options...),
			"bulk":        inbox.NewBulk(nullStore{newFakeStore()}, "billing", bulk, options...),
			"fingerprint": inbox.New(nullStore{newFakeStore()}, "billing", each, append(options, inbox.FingerprintPayload())...),
		} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, size), func(b *testing.B) {
				benchmarkProcess(b, in, size)
			})
		}
	}
}

func benchmarkProcess(b *testing.B, in *inbox.Inbox[*fakeTx], size int) {
	b.Helper()
	b.ReportAllocs()
	ms := make([]inbox.Message, size)
	for i := range ms {
		ms[i] = message(strconv.Itoa(i))
		ms[i].Key, ms[i].Payload = []byte("customer-1"), make([]byte, 1<<10)
	}
	for done := 0; done < b.N; done += size {
		if _, err := in.Process(b.Context(), ms); err != nil {
			b.Fatal(err)
		}
	}
}
