package inbox

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/internal/panicvalue"
)

// reportDecision reports a committed message. On the good path, nobody listening,
// it costs a counter and a check.
func (in *Inbox[Tx]) reportDecision(ctx context.Context, m *Message, d decision, took time.Duration) {
	kind := EventProcessed
	switch d.outcome {
	case Duplicate:
		kind = EventDuplicate
	case Parked:
		kind = EventParked
	case Processed, Failed, NotRun:
	}
	if d.reason == "" && in.hook == nil && !in.logger.Enabled(ctx, slog.LevelDebug) {
		in.counters.count(kind, "", 1)
		return
	}
	in.report(ctx, Event{Kind: kind, Message: *m, Count: 1, Reason: d.reason, Duration: took, Err: d.cause(m)})
}

// report counts an event, passes it to the hook and logs it. It adds consumer
// and level, and leaves of the message what may be shown.
func (in *Inbox[Tx]) report(ctx context.Context, event Event) {
	if event.Kind != EventOutage { // whose level is not its own
		event.Level = level(event)
	}
	event.Consumer = in.consumer
	event.Message = Message{ID: event.Message.ID, Topic: event.Message.Topic, Position: event.Message.Position}
	in.counters.count(event.Kind, event.Reason, int64(event.Count))
	if in.hook != nil {
		in.tell(ctx, event)
	}
	if !in.logger.Enabled(ctx, event.Level) {
		return
	}
	attrs := make([]slog.Attr, 0, 11)
	attrs = append(attrs, slog.String("consumer", event.Consumer))
	if event.Message.Topic != "" || event.Message.ID != "" {
		attrs = append(attrs,
			slog.String("message_id", idempotency.StoredForm(event.Message.ID)),
			slog.String("topic", event.Message.Topic),
			slog.String("position", event.Message.Position))
	}
	if event.DeadLetter != 0 {
		attrs = append(attrs, slog.Int64("dead_letter", event.DeadLetter))
	}
	if event.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(event.Reason)))
	}
	if event.Attempts > 0 {
		attrs = append(attrs, slog.Int("attempts", event.Attempts))
	}
	if event.Count > 1 {
		attrs = append(attrs, slog.Int("count", event.Count))
	}
	if event.Duration > 0 {
		attrs = append(attrs, slog.Duration("took", event.Duration))
	}
	if event.Err != nil {
		attrs = append(attrs, slog.String("error", errorText(event.Err, logErrorBytes)))
	}
	if panicked, ok := errors.AsType[*PanicError](event.Err); ok {
		attrs = append(attrs, slog.String("stack", string(panicked.Stack)))
	}
	in.logger.LogAttrs(ctx, event.Level, logLine(event), attrs...)
}

// tell calls the hook, which is the user's: like the logger's, its panic must not
// look as if what is reported had not happened, nor end the process.
func (in *Inbox[Tx]) tell(ctx context.Context, event Event) {
	defer func() {
		if value := recover(); value != nil {
			in.counters.reportPanics.Add(1)
			in.logger.LogAttrs(ctx, slog.LevelError, "inbox: OnEvent panicked",
				slog.String("consumer", in.consumer), slog.String("event", string(event.Kind)),
				slog.String("panic", panicvalue.Text(value)), slog.String("stack", string(debug.Stack())))
		}
	}()
	in.hook(ctx, event)
}

const (
	// rowErrorBytes bounds the text of an error in a row: enough for a stack
	// trace, too little to fill a disk with the same one.
	rowErrorBytes = 8 << 10

	// logErrorBytes bounds it in a log line, which must not cost what a row may.
	logErrorBytes = 1 << 10
)

// errorText is an error as it is stored and logged: valid text of at most limit
// bytes, without NUL bytes, which PostgreSQL refuses. An ellipsis shows a cut.
func errorText(err error, limit int) string {
	const ellipsis = "…"
	if err == nil {
		return ""
	}
	text := err.Error()
	end := ""
	if len(text) > limit {
		text, end = text[:limit-len(ellipsis)], ellipsis
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "") + end
}

func logLine(event Event) string {
	switch event.Kind {
	case EventProcessed:
		return "inbox: message processed"
	case EventDuplicate:
		return "inbox: duplicate skipped"
	case EventParked:
		return "inbox: message set aside as a dead letter"
	case EventFailed:
		if event.DeadLetter != 0 {
			return "inbox: redrive failed, the dead letter stays"
		}
		return "inbox: message failed, it will be tried again"
	case EventRedriven:
		return "inbox: dead letter redriven"
	case EventDiscarded:
		return "inbox: dead letters discarded"
	case EventPruned:
		return "inbox: expired records pruned"
	case EventOutage:
		return "inbox: store is out, nothing is handled until it is back"
	case EventRecovered:
		return "inbox: store is back"
	case EventAbandoned:
		return "inbox: handler does not return, its goroutine is left behind"
	default:
		return "inbox: " + string(event.Kind)
	}
}

// level: what a person must act on is an error, what heals itself a warning.
func level(event Event) slog.Level {
	switch event.Kind {
	case EventParked:
		if event.Reason == ReasonBehind {
			return slog.LevelWarn
		}
		return slog.LevelError
	case EventAbandoned:
		return slog.LevelError
	case EventFailed:
		return slog.LevelWarn
	case EventRedriven, EventDiscarded, EventRecovered:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}
