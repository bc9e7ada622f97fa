package main

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
)

// offsets are what a group has committed, by partition. Partitions begin at offset
// 0, so that is how many of their messages the group takes for settled.
type offsets [partitions]int

// committed reads the offsets of a group.
func committed(ctx context.Context, client *kafka.Client, topic, group string) (o offsets, err error) {
	all := make([]int, partitions)
	for i := range all {
		all[i] = i
	}
	response, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: all}})
	if err != nil {
		return o, fmt.Errorf("read the offsets of group %s: %w", group, err)
	}
	if response.Error != nil {
		return o, fmt.Errorf("read the offsets of group %s: %w", group, response.Error)
	}
	for _, p := range response.Topics[topic] {
		if p.Error != nil {
			return o, fmt.Errorf("read the offset of partition %d of group %s: %w", p.Partition, group, p.Error)
		}
		o[p.Partition] = int(max(0, p.CommittedOffset))
	}
	return o, nil
}

// matchDone returns what is wrong if other than done messages were committed. All
// sides stop cleanly: what was done is committed, and nothing else.
func (o offsets) matchDone(done int) error {
	sum := 0
	for _, n := range o {
		sum += n
	}
	if sum != done {
		return fmt.Errorf("offsets of %d messages were committed, %d were done", sum, done)
	}
	return nil
}

// matchEffects returns what is wrong if the orders with an effect are not exactly
// those of the messages that were committed. A message that was committed without its
// effect is lost; one whose effect was not committed would come again.
func (o offsets) matchEffects(orders []string) error {
	var effects [partitions]map[int]bool
	for p := range effects {
		effects[p] = make(map[int]bool)
	}
	for _, id := range orders {
		p, n, err := messageOf(id)
		if err != nil {
			return err
		}
		if effects[p][n] {
			return fmt.Errorf("partition %d: message %d had its effect twice", p, n)
		}
		effects[p][n] = true
	}
	for p, end := range o {
		before := 0
		for n := range effects[p] {
			if n < end {
				before++
			}
		}
		if before < end || before < len(effects[p]) {
			return fmt.Errorf("partition %d: %d messages were committed, of which %d had no effect; %d others had one",
				p, end, end-before, len(effects[p])-before)
		}
	}
	return nil
}
