package inbox

import (
	"context"
	"maps"
	"slices"

	"github.com/onceward/onceward/idempotency"
)

// orderingKey is what ParkKey keeps in order: equal keys of two topics are
// strangers.
type orderingKey struct{ topic, key string }

// parkedKeys says of each key of a batch whether messages wait behind a dead
// letter. It is nil without ParkKey: then nothing waits.
type parkedKeys map[orderingKey]bool

func (p parkedKeys) has(m *Message) bool {
	return p != nil && m.Key != nil && p[orderingKey{m.Topic, string(m.Key)}]
}

// add parks the key of a message set aside in this very batch.
func (p parkedKeys) add(m *Message) {
	if p != nil && m.Key != nil {
		p[orderingKey{m.Topic, string(m.Key)}] = true
	}
}

// parkedKeys asks the store about the keys of all new messages, once a topic.
func (b *batch[Tx]) parkedKeys(ctx context.Context, tx Tx, verdicts []idempotency.Verdict) (parkedKeys, error) {
	var parked parkedKeys
	if !b.in.parkKey {
		return parked, nil
	}
	parked = parkedKeys{}
	keys := map[string][][]byte{}
	for i := range b.messages {
		m := &b.messages[i]
		if m.Key == nil || verdicts[i] != idempotency.Fresh {
			continue
		}
		key := orderingKey{m.Topic, string(m.Key)}
		if _, asked := parked[key]; asked {
			continue
		}
		parked[key] = false
		keys[m.Topic] = append(keys[m.Topic], m.Key)
	}
	// In one order everywhere: these are locks, and two batches that took them in
	// opposite orders would deadlock.
	for _, topic := range slices.Sorted(maps.Keys(keys)) {
		answers, err := b.in.store.ParkedKeys(ctx, tx, b.in.consumer, topic, keys[topic])
		if err != nil {
			return nil, err
		}
		for i, isParked := range answers {
			parked[orderingKey{topic, string(keys[topic][i])}] = isParked
		}
	}
	return parked, nil
}
