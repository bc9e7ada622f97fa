package kafka_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/inbox"
)

// K5: by default a partition is handled in order, one message at a time.
func TestK5InOrderWithinAPartitionByDefault(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	produce(t, c, "orders", 0, numbered(0, 500)...)
	processor := &recorder{handle: func(context.Context, inbox.Message) (inbox.Result, error) {
		if rand.N(20) == 0 {
			return inbox.Result{Outcome: inbox.Failed}, nil
		}
		return processed, nil
	}}
	r := consume(t, quick(addr), processor)
	awaitCommitted(t, c, "orders", 0, 500)
	r.stop()
	assertInOrder(t, processor.settled(), 500)
}

// K5: with KeyParallelism messages of several keys run at once; those of one key never do, and stay in order.
func TestK5KeysRunAtOnceAndEachInOrder(t *testing.T) {
	t.Parallel()
	_, addr := fakeCluster(t, 1)
	c := client(t, addr)
	const keys, each = 20, 30
	var records []kafkago.Record
	for i := range keys * each {
		r := record("m" + strconv.Itoa(i))
		r.Key = kafkago.NewBytes([]byte{byte(i % keys)})
		records = append(records, r)
	}
	produce(t, c, "orders", 0, records...)

	var mu sync.Mutex
	active, most := make(map[string]bool), 0
	last := make(map[string]int)
	processor := &recorder{handle: func(_ context.Context, m inbox.Message) (inbox.Result, error) {
		key := string(m.Key)
		n, _ := strconv.Atoi(m.ID[1:])
		mu.Lock()
		if active[key] {
			t.Errorf("two messages of key %x at once", key)
		}
		if n < last[key] {
			t.Errorf("key %x: %d after %d", key, n, last[key])
		}
		active[key], last[key] = true, n
		most = max(most, len(active))
		mu.Unlock()

		<-time.After(rand.N(2 * time.Millisecond)) // the work

		mu.Lock()
		delete(active, key)
		mu.Unlock()
		if rand.N(20) == 0 {
			return inbox.Result{Outcome: inbox.Failed, RetryAfter: time.Millisecond}, nil
		}
		return processed, nil
	}}
	config := quick(addr)
	config.KeyParallelism = 6
	r := consume(t, config, processor)
	awaitCommitted(t, c, "orders", 0, keys*each)
	r.stop()
	if most < 2 || most > 6 {
		t.Errorf("%d messages ran at once, want 2 to 6", most)
	}
}
