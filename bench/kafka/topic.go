package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"
)

const (
	partitions   = 8
	payloadBytes = 1024
	// fillBatch is what a busy producer puts into one batch. It is small against
	// a fetch, so that neither side reads much of a batch twice.
	fillBatch = 100
	idHeader  = "onceward-id"
)

// fill writes messages of 1 KB to every partition alike, uncompressed.
func fill(ctx context.Context, client *kafka.Client, topic string, messages int) error {
	group, ctx := errgroup.WithContext(ctx)
	for partition := range partitions {
		group.Go(func() error {
			perPartition := messages / partitions
			for first := 0; first < perPartition; first += fillBatch {
				if err := produce(ctx, client, topic, partition, first, min(fillBatch, perPartition-first)); err != nil {
					return fmt.Errorf("fill partition %d: %w", partition, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func produce(ctx context.Context, client *kafka.Client, topic string, partition, first, count int) error {
	now := time.Now()
	records := make([]kafka.Record, count)
	for i := range records {
		n := first + i
		records[i] = kafka.Record{
			Time:    now,
			Key:     kafka.NewBytes(strconv.AppendInt(nil, int64(n%1000), 10)),
			Value:   kafka.NewBytes(make([]byte, payloadBytes)),
			Headers: []kafka.Header{{Key: idHeader, Value: []byte(orderOf(partition, n))}},
		}
	}
	response, err := client.Produce(ctx, &kafka.ProduceRequest{
		Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
	})
	if err != nil {
		return err
	}
	return response.Error
}

// orderFormat is that of a UUIDv7: in order of time within the partition.
const orderFormat = "019a0000-%04x-7%03x-8000-%012x"

// orderOf is the ID of the n-th message of a partition, which orders one thing.
func orderOf(partition, n int) string { return fmt.Sprintf(orderFormat, n>>16, partition, n) }

// messageOf tells which message made an order.
func messageOf(order string) (partition, n int, err error) {
	var high int
	if _, err := fmt.Sscanf(order, orderFormat, &high, &partition, &n); err != nil || partition >= partitions || orderOf(partition, n) != order {
		return 0, 0, fmt.Errorf("order %q is of no message of the topic", order)
	}
	return partition, n, nil
}
