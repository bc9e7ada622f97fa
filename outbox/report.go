package outbox

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/panicvalue"
	"github.com/onceward/onceward/internal/userlog"
)

// reporter counts what a relay does, logs it and tells the hook. It is safe for
// concurrent use.
type reporter struct {
	relay  string
	logger *slog.Logger
	hook   func(Notice)
	counters
}

func newReporter(config RelayConfig) *reporter {
	r := &reporter{relay: config.Name, hook: config.OnNotice}
	r.logger = userlog.Guard(config.Logger, func() { r.reportPanics.Add(1) })
	return r
}

// published is the good path: nobody listening, it costs a counter and a check.
func (r *reporter) published(events int, took time.Duration) {
	if r.hook == nil && !r.logs(slog.LevelDebug) {
		r.count(NoticePublished, events)
		return
	}
	r.notice(Notice{Kind: NoticePublished, Lane: -1, Count: events, Duration: took})
}

func (r *reporter) notices(list []Notice) {
	for i := range list {
		r.notice(list[i])
	}
}

// notice counts it, passes it to the hook and logs it. It adds relay and level.
func (r *reporter) notice(n Notice) {
	if n.Relay == "" {
		n.Relay = r.relay
	}
	if n.Kind != NoticeOutage && n.Kind != NoticePaused && n.Kind != NoticeResumed { // whose level is not their own
		n.Level = level(n.Kind)
	}
	r.count(n.Kind, n.Count)
	if r.hook != nil {
		r.tell(n)
	}
	if !r.logs(n.Level) {
		return
	}
	attrs := make([]slog.Attr, 0, 9)
	attrs = append(attrs, slog.String("relay", n.Relay))
	if n.Lane >= 0 {
		attrs = append(attrs, slog.Int("lane", n.Lane))
	}
	if n.Number != 0 {
		attrs = append(attrs, slog.Int64("number", n.Number), slog.String("event_id", n.ID), slog.String("topic", n.Topic))
	}
	if n.Count > 1 {
		attrs = append(attrs, slog.Int("count", n.Count))
	}
	if n.Attempts > 0 {
		attrs = append(attrs, slog.Int("attempts", n.Attempts))
	}
	if n.Duration > 0 {
		attrs = append(attrs, slog.Duration(durationName(n.Kind), n.Duration))
	}
	if n.Err != nil {
		attrs = append(attrs, slog.String("error", errorText(n.Err, logErrorBytes)))
	}
	r.log(n.Level, logLine(n.Kind), attrs...)
}

func durationName(kind NoticeKind) string {
	switch kind {
	case NoticeRetrying, NoticeDelayed, NoticePaused:
		return "wait"
	case NoticeAbandoned:
		return "after"
	default:
		return "took"
	}
}

func (r *reporter) panicked(stack string) {
	r.log(slog.LevelError, "outbox: publisher panicked, its events are published again",
		slog.String("relay", r.relay), slog.String("stack", stack))
}

func (r *reporter) pruneFailed(err error) {
	r.log(slog.LevelWarn, "outbox: pruning the log failed, it will be tried again",
		slog.String("relay", r.relay), slog.String("error", errorText(err, logErrorBytes)))
}

func (r *reporter) left(err error) {
	r.log(slog.LevelWarn, "outbox: lanes could not be given back, they are free when the lease is over",
		slog.String("relay", r.relay), slog.String("error", errorText(err, logErrorBytes)))
}

// tell calls the hook, which is the user's: like the logger's, its panic must not
// look as if what is reported had not happened, nor end the process.
func (r *reporter) tell(n Notice) {
	defer func() {
		if value := recover(); value != nil {
			r.reportPanics.Add(1)
			r.log(slog.LevelError, "outbox: OnNotice panicked", slog.String("relay", r.relay),
				slog.String("notice", string(n.Kind)), slog.String("panic", panicvalue.Text(value)), slog.String("stack", string(debug.Stack())))
		}
	}()
	r.hook(n)
}

func (r *reporter) logs(level slog.Level) bool { return r.logger.Enabled(context.Background(), level) }

func (r *reporter) log(level slog.Level, line string, attrs ...slog.Attr) {
	r.logger.LogAttrs(context.Background(), level, line, attrs...)
}

const (
	// rowErrorBytes bounds the text of an error in a row.
	rowErrorBytes = 8 << 10

	// logErrorBytes bounds it in a log line, which must not cost what a row may.
	logErrorBytes = 1 << 10
)

// errorText is an error as it is stored and logged: valid text of at most limit
// bytes, without NUL bytes, which PostgreSQL refuses. An ellipsis shows a cut.
func errorText(err error, limit int) string {
	const ellipsis = "…"
	text, end := err.Error(), ""
	if len(text) > limit {
		text, end = text[:limit-len(ellipsis)], ellipsis
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "") + end
}

func logLine(kind NoticeKind) string {
	switch kind {
	case NoticePublished:
		return "outbox: events published"
	case NoticeRetrying:
		return "outbox: event failed, it will be tried again"
	case NoticeDead:
		return "outbox: event set aside as a dead letter"
	case NoticeBehind:
		return "outbox: event set aside behind another of its key"
	case NoticeDelayed:
		return "outbox: event set aside until it is due"
	case NoticeSkipped:
		return "outbox: event skipped"
	case NoticePaused:
		return "outbox: destination is unavailable, the lane waits"
	case NoticeResumed:
		return "outbox: destination is back"
	case NoticeStuck:
		return "outbox: publisher does not return, its lanes wait for it"
	case NoticeTaken:
		return "outbox: lanes taken"
	case NoticeReleased:
		return "outbox: lanes released"
	case NoticeLost:
		return "outbox: lanes lost, because the lease was over or an operation changed them; who takes them next goes on from what is saved"
	case NoticeOutage:
		return "outbox: store is out, nothing is read until it is back"
	case NoticeRecovered:
		return "outbox: store is back"
	case NoticePruned:
		return "outbox: published events pruned"
	case NoticeAbandoned:
		return "outbox: relay has no running instance, events are not kept for it any more"
	default:
		return "outbox: " + string(kind)
	}
}

// level: what a person must act on is an error, what heals itself a warning.
func level(kind NoticeKind) slog.Level {
	switch kind {
	case NoticeDead, NoticeStuck:
		return slog.LevelError
	case NoticeRetrying, NoticeBehind, NoticeLost, NoticeAbandoned:
		return slog.LevelWarn
	case NoticeTaken, NoticeReleased, NoticeRecovered, NoticeSkipped:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}

// noteLanes reports lanes that changed their owner.
func (in *instance) noteLanes(kind NoticeKind, lanes []int) {
	if len(lanes) == 0 {
		return
	}
	n := Notice{Kind: kind, Lane: -1, Count: len(lanes)}
	if len(lanes) == 1 {
		n.Lane = lanes[0]
	}
	in.report.notice(n)
}

// noteStuck reports calls whose publisher does not heed its context.
func (in *instance) noteStuck(now time.Time) {
	for _, c := range in.stripes {
		if c != nil && !c.stuck && now.Sub(c.began) >= in.PublishTimeout+callGrace {
			c.stuck = true
			in.report.notice(Notice{Kind: NoticeStuck, Lane: -1, Count: len(c.events), Duration: now.Sub(c.began)})
		}
	}
}
