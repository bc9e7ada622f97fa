package kafka

import (
	"context"
	"errors"

	"github.com/onceward/onceward/inbox"
)

// Consume reads the topics as a member of the group and hands every message to
// processor, until ctx ends. It blocks. It returns nil after a clean drain when
// ctx has ended, and an error for a config or a start that can't work.
func Consume(ctx context.Context, config ConsumerConfig, processor inbox.Processor) error {
	config = config.withDefaults()
	if processor == nil {
		return errors.New("kafka: processor is nil: pass an *inbox.Inbox")
	}
	if err := config.validate(); err != nil {
		return err
	}
	return errors.New("kafka: the consumer is being written")
}
