package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/internal/panicvalue"
	"github.com/onceward/onceward/internal/userlog"
)

// Events of a consumer. Event.Consumer is the group; Event.Message has Topic
// and Position where one partition is concerned; Event.Count is given below.
const (
	// EventJoining: Consume has begun to join the group. If a member was killed
	// and did not leave, the group may wait for it, up to Duration: SessionTimeout.
	// Message.Topic: the topics, joined by commas; Count: how many.
	EventJoining inbox.EventKind = "kafka_joining"
	// EventJoined: the group assigned partitions. Count: how many; 0 if there
	// are more members than partitions.
	EventJoined inbox.EventKind = "kafka_joined"
	// EventDrained: a generation has ended and what ran is done. Count:
	// messages handled in it.
	EventDrained inbox.EventKind = "kafka_drained"
	// EventHandlersCancelled: handlers that were still running lost their
	// context, because DrainTimeout was over or the broker had evicted this
	// member. Count: messages that will be delivered again.
	EventHandlersCancelled inbox.EventKind = "kafka_handlers_cancelled"
	// EventAbandoned: handlers ignored their cancelled context and are left
	// behind. Count: how many goroutines.
	EventAbandoned inbox.EventKind = "kafka_abandoned"

	// EventRetry: the group or a fetch failed and is tried again with backoff.
	// Said once for each row of failures.
	EventRetry inbox.EventKind = "kafka_retry"
	// EventRecovered: it works again. Count: attempts that had failed.
	EventRecovered inbox.EventKind = "kafka_recovered"
	// EventPaused: the inbox reported an outage; nothing is handed on until
	// it is over. EventResumed: it is over, after Duration.
	EventPaused  inbox.EventKind = "kafka_paused"
	EventResumed inbox.EventKind = "kafka_resumed"

	// EventCommitDropped: offsets were not committed because the generation
	// has ended; their messages are delivered again and are duplicates. Said
	// once for a generation. Count: partitions.
	EventCommitDropped inbox.EventKind = "kafka_commit_dropped"
	// EventCommitFailed: a commit failed, also one that only keeps the session
	// while draining, and is tried again. Count: partitions.
	EventCommitFailed inbox.EventKind = "kafka_commit_failed"

	// EventDataLoss: records were deleted before they were read; reading goes
	// on at the start of the log. Count: offsets passed over.
	EventDataLoss inbox.EventKind = "kafka_data_loss"
	// EventOffsetReset: the log ends before the offset to read; reading goes on
	// at its start, with StartLast at its end. Count: offsets it went back.
	EventOffsetReset inbox.EventKind = "kafka_offset_reset"
	// EventCorrupt: a batch could not be decoded. Nothing behind it is
	// delivered.
	EventCorrupt inbox.EventKind = "kafka_corrupt"
	// EventAborted: records of aborted transactions were left out. Count:
	// records.
	EventAborted inbox.EventKind = "kafka_aborted"
	// EventStalled: records wait, and the partition made no progress for
	// Duration. Count: lag in offsets. Err: what it waits for.
	EventStalled inbox.EventKind = "kafka_stalled"

	// EventPartitionsChanged: partitions were added; the group rebalances.
	// Count: partitions of the topic now.
	EventPartitionsChanged inbox.EventKind = "kafka_partitions_changed"
	// EventTopicMissing: a topic that was there has gone.
	EventTopicMissing inbox.EventKind = "kafka_topic_missing"
	// EventCloseTimeout: leaving the group took too long; the connections were
	// cut. The broker notices by SessionTimeout.
	EventCloseTimeout inbox.EventKind = "kafka_close_timeout"
)

// levels are what is not slog.LevelWarn.
var levels = map[inbox.EventKind]slog.Level{
	EventJoining:           slog.LevelInfo,
	EventJoined:            slog.LevelInfo,
	EventDrained:           slog.LevelInfo,
	EventRecovered:         slog.LevelInfo,
	EventResumed:           slog.LevelInfo,
	EventCommitDropped:     slog.LevelInfo,
	EventPartitionsChanged: slog.LevelInfo,
	EventAborted:           slog.LevelDebug,
	EventDataLoss:          slog.LevelError,
	EventOffsetReset:       slog.LevelError,
	EventCorrupt:           slog.LevelError,
	EventAbandoned:         slog.LevelError,
}

// reporter logs events and passes them to the user's hook. No key, payload or
// header ever reaches it.
type reporter struct {
	group string
	log   *slog.Logger
	hook  inbox.Hook
}

// newReporter guards the logger: only the hook is left to tell of what it did not log.
func newReporter(config ConsumerConfig) reporter {
	return reporter{group: config.Group, log: userlog.Guard(config.Logger, nil), hook: config.OnEvent}
}

func (r reporter) report(ctx context.Context, event inbox.Event) {
	event.Consumer = r.group
	event.Level = slog.LevelWarn
	if level, ok := levels[event.Kind]; ok {
		event.Level = level
	}
	attrs := append(make([]slog.Attr, 0, 7), slog.String("group", r.group), slog.Int("count", event.Count))
	switch {
	case event.Kind == EventJoining:
		attrs = append(attrs, slog.String("topics", event.Message.Topic),
			slog.String("note", "this takes up to SessionTimeout (duration) if a member was killed and could not leave"))
	case event.Message.Position != "":
		attrs = append(attrs, slog.String("position", event.Message.Position))
	case event.Message.Topic != "":
		attrs = append(attrs, slog.String("topic", event.Message.Topic))
	}
	if event.Duration > 0 {
		attrs = append(attrs, slog.Duration("duration", event.Duration))
	}
	if event.Err != nil {
		attrs = append(attrs, slog.String("error", event.Err.Error()))
	}
	r.log.LogAttrs(ctx, event.Level, string(event.Kind), attrs...)
	r.tell(ctx, event)
}

// tell calls the user's hook. Its panic must not end a consumer, so it is
// logged and forgotten.
func (r reporter) tell(ctx context.Context, event inbox.Event) {
	if r.hook == nil {
		return
	}
	defer func() {
		if value := recover(); value != nil {
			r.log.LogAttrs(ctx, slog.LevelError, "kafka: OnEvent panicked", slog.String("group", r.group),
				slog.String("event", string(event.Kind)), slog.String("panic", panicvalue.Text(value)), slog.String("stack", string(debug.Stack())))
		}
	}()
	r.hook(ctx, event)
}

// joining reports that Consume begins to join: without it, waiting for a killed
// member would look like hanging.
func (r reporter) joining(ctx context.Context, config ConsumerConfig) {
	r.report(ctx, inbox.Event{
		Kind: EventJoining, Message: inbox.Message{Topic: strings.Join(config.Topics, ",")},
		Count: len(config.Topics), Duration: config.SessionTimeout,
	})
}

// at is the place an event speaks of.
func at(topic string, partition int, offset int64) inbox.Message {
	return inbox.Message{Topic: topic, Position: fmt.Sprintf("%s/%d/%d", topic, partition, offset)}
}
