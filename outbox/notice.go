package outbox

import (
	"log/slog"
	"time"
)

// NoticeKind names something a relay did without anybody asking.
type NoticeKind string

const (
	// NoticePublished: a call of the publisher acknowledged Count events.
	NoticePublished NoticeKind = "published"
	// NoticeRetrying: an event failed and is tried again.
	NoticeRetrying NoticeKind = "retrying"
	// NoticeDead: an event became a dead letter.
	NoticeDead NoticeKind = "dead"
	// NoticeBehind: an event was set aside behind another of its key.
	NoticeBehind NoticeKind = "behind"
	// NoticeDelayed: Count events were set aside until they are due.
	NoticeDelayed NoticeKind = "delayed"
	// NoticeSkipped: an event was passed because an operator asked for it.
	NoticeSkipped NoticeKind = "skipped"
	// NoticePaused: a destination is unavailable; the lane waits. The first one
	// of an outage is logged as a warning, those that follow at debug level.
	NoticePaused NoticeKind = "paused"
	// NoticeResumed: a lane that was paused goes on. Duration: since it was. The
	// last one of an outage is logged as information, the others at debug level.
	NoticeResumed NoticeKind = "resumed"
	// NoticeStuck: a call of the publisher did not return after its context had
	// ended. Its lanes wait for it: nobody knows what it still sends.
	NoticeStuck NoticeKind = "stuck"
	// NoticeTaken, NoticeReleased, NoticeLost: Count lanes changed their owner. Lost: the
	// lease was over, or an operation changed something; the same instance may take
	// them again at once.
	NoticeTaken    NoticeKind = "taken"
	NoticeReleased NoticeKind = "released" //nolint:revive // said above
	NoticeLost     NoticeKind = "lost"     //nolint:revive // said above
	// NoticeOutage, NoticeRecovered: the store. The first one of an outage is
	// logged as an error, those that follow at debug level. Recovered: Count
	// statements had failed, since Duration.
	NoticeOutage    NoticeKind = "outage"
	NoticeRecovered NoticeKind = "recovered"
	// NoticePruned: Count events were deleted from the log.
	NoticePruned NoticeKind = "pruned"
	// NoticeAbandoned: a relay without running instances does not keep events any more.
	NoticeAbandoned NoticeKind = "abandoned"
)

// Notice is what OnNotice receives. Fields that do not apply are zero.
type Notice struct {
	Kind  NoticeKind
	Level slog.Level
	Relay string
	// Lane is -1 if it concerns several.
	Lane int
	// Number, ID and Topic are those of the event concerned.
	Number    int64
	ID, Topic string
	// Count is how many events the notice stands for; at least 1.
	Count    int
	Attempts int
	Duration time.Duration
	Err      error
}
