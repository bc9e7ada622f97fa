package kafka

import (
	"context"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// kafkaDefaultLimit is max.message.bytes of a topic nobody has configured.
const kafkaDefaultLimit = 1_048_588

// anyStore is a store that takes whatever Publish lets pass.
type anyStore struct {
	outbox.Store[struct{}]
}

func (anyStore) Append(context.Context, struct{}, []outbox.Message) error { return nil }

// largest is the most that Publish takes of something that grows.
func largest(t *testing.T, most int, message func(n int) outbox.Message) outbox.Message {
	t.Helper()
	events := outbox.New(anyStore{})
	n := sort.Search(most, func(n int) bool { return events.Publish(t.Context(), struct{}{}, message(n+1)) != nil })
	if n == 0 || n == most {
		t.Fatalf("Publish takes a message of %d", n)
	}
	return message(n)
}

// Whatever passes Publish's default limit is a batch that a topic takes by default, in any form: one large value, or hundreds of
// thousands of headers.
func TestWhatPublishTakesFitsKafkasDefaultLimit(t *testing.T) {
	t.Parallel()
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = 'x'
	}
	lengths := []int{0, 1, 63, 64, 8191, 8192, 100_000}
	value := func() []byte {
		switch n := random.IntN(len(lengths) + 2); n {
		case len(lengths):
			return nil
		case len(lengths) + 1:
			return text[:random.IntN(300)]
		default:
			return text[:lengths[n]]
		}
	}
	messages := []outbox.Message{
		largest(t, len(text), func(n int) outbox.Message { return outbox.Message{Topic: "orders", Payload: text[:n]} }),
		largest(t, len(text), func(n int) outbox.Message { return outbox.Message{Topic: "orders", Key: text[:n]} }),
	}
	for _, header := range []outbox.Header{{Name: "h"}, {Name: "h", Value: []byte{}}, {Name: "h", Value: []byte("v")}} {
		headers := make([]outbox.Header, 1<<20)
		for i := range headers {
			headers[i] = header
		}
		messages = append(messages, largest(t, len(headers), func(n int) outbox.Message { return outbox.Message{Topic: "orders", Headers: headers[:n]} }))
	}
	for range 100 {
		headers := make([]outbox.Header, 1+random.IntN(5000))
		same := outbox.Header{Name: string(text[:1+random.IntN(100)]), Value: value()}
		for i := range headers {
			if headers[i] = same; i%2 == 0 {
				headers[i] = outbox.Header{Name: string(text[:max(1, len(value()))]), Value: value()}
			}
		}
		id, key := string(text[:1+random.IntN(512)]), value()
		part := largest(t, len(headers)+1, func(n int) outbox.Message {
			if n > len(headers) {
				return outbox.Message{} // never taken
			}
			return outbox.Message{ID: id, Topic: "orders", Headers: headers[:n]}
		})
		part.Headers = part.Headers[:random.IntN(len(part.Headers)+1)]
		if len(key) < 1000 {
			part.Key = key
		}
		messages = append(messages, largest(t, len(text), func(n int) outbox.Message {
			part.Payload = text[:n-1]
			return part
		}))
	}
	for _, m := range messages {
		const size = 4 // stands before the batch
		e := outbox.Event{Message: m, CreatedAt: time.UnixMilli(1_750_000_000_000)}
		if n := len(encoded(t, 0, e)) - size; n > kafkaDefaultLimit {
			t.Errorf("a key of %d bytes, a payload of %d and %d headers make a batch of %d", len(m.Key), len(m.Payload), len(m.Headers), n)
		}
	}
}
