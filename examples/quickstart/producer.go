package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/segmentio/kafka-go"
)

// order is the payload of one message.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

func newOrders(n int) []order {
	orders := make([]order, n)
	for i := range orders {
		orders[i] = order{
			ID:       fmt.Sprintf("order-%04d", i+1),
			Customer: fmt.Sprintf("customer-%02d", chance(50)),
			Cents:    100 + chance(9_900),
		}
	}
	return orders
}

func chance(n int) int { return rand.IntN(n) }

// withRetries is what a retrying producer puts on the wire: every order once,
// and again a little later, because the first acknowledgement got lost.
func withRetries(orders []order) []order {
	type retry struct {
		due   int
		order order
	}
	var sent []order
	var waiting []retry
	for i := 0; i < len(orders) || len(waiting) > 0; i++ {
		if i < len(orders) {
			sent = append(sent, orders[i])
			waiting = append(waiting, retry{due: i + 1 + chance(40), order: orders[i]})
		}
		later := waiting[:0]
		for _, r := range waiting {
			if r.due > i {
				later = append(later, r)
				continue
			}
			sent = append(sent, r.order)
		}
		waiting = later
	}
	return sent
}

// send writes the orders to the topic, in their order, and returns once all
// replicas have them. The order's id travels as the message ID: it is the same
// in every copy of an order, and that is all that Onceward asks of a producer.
func (b *broker) send(ctx context.Context, topic string, orders []order) error {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(b.address),
		Topic:        topic,
		Balancer:     kafka.Murmur2Balancer{}, // the same partition as a Java producer's
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond,
	}
	defer writer.Close()
	messages := make([]kafka.Message, len(orders))
	for i, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", o.ID, err)
		}
		messages[i] = kafka.Message{
			Key:     []byte(o.Customer),
			Value:   payload,
			Headers: []kafka.Header{{Key: "onceward-id", Value: []byte(o.ID)}},
		}
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		return fmt.Errorf("sending to topic %s: %w", topic, err)
	}
	return nil
}
