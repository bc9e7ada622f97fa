package outbox

import (
	"fmt"
	"log/slog"
	"time"
)

// outage is whether the store is out. It is tried again and again while that lasts, and
// the log line is for a person, so only the change is said aloud.
type outage struct {
	what     string
	failures int
	since    time.Time
	retryAt  time.Time
}

func (o *outage) fail(in *instance, err error, began time.Time) {
	level := slog.LevelDebug
	if o.failures == 0 {
		o.since, level = began, slog.LevelError
	}
	o.failures++
	o.retryAt = time.Now().Add(in.backoff(o.failures))
	in.report.notice(Notice{Kind: NoticeOutage, Level: level, Lane: -1, Count: 1, Err: fmt.Errorf("%s: %w", o.what, err)})
}

func (o *outage) end(in *instance) {
	if o.failures == 0 {
		return
	}
	failures, lasted := o.failures, time.Since(o.since)
	o.failures, o.retryAt = 0, time.Time{}
	in.report.notice(Notice{Kind: NoticeRecovered, Lane: -1, Count: failures, Duration: lasted})
}
