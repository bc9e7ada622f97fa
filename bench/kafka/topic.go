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
			Time:  now,
			Key:   kafka.NewBytes(strconv.AppendInt(nil, int64(n%1000), 10)),
			Value: kafka.NewBytes(make([]byte, payloadBytes)),
			// Time-ordered within the partition, like a UUIDv7.
			Headers: []kafka.Header{{Key: idHeader, Value: fmt.Appendf(nil, "019a0000-%04x-7%03x-8000-%012x", n>>16, partition, n)}},
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

// committed is the sum of the offsets a group has committed. Partitions begin
// at offset 0, so that is how many messages it has settled.
func committed(ctx context.Context, client *kafka.Client, topic, group string) (int, error) {
	all := make([]int, partitions)
	for i := range all {
		all[i] = i
	}
	response, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: all}})
	if err != nil {
		return 0, fmt.Errorf("read the offsets of group %s: %w", group, err)
	}
	if response.Error != nil {
		return 0, fmt.Errorf("read the offsets of group %s: %w", group, response.Error)
	}
	sum := 0
	for _, p := range response.Topics[topic] {
		if p.Error != nil {
			return 0, fmt.Errorf("read the offset of partition %d of group %s: %w", p.Partition, group, p.Error)
		}
		sum += int(max(0, p.CommittedOffset))
	}
	return sum, nil
}
