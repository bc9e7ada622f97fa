package inbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// outage is whether the store is out, as the calls of one inbox see it. Every
// partition calls again and again while it lasts, and its log line is for a person,
// so only the change is said aloud. What a call saw that began before the last
// change is no news: it may have seen the time before.
type outage struct {
	mu    sync.Mutex
	calls int       // that it has ended; 0: there is none
	since time.Time // the last change
}

// begin notes a call that the outage has ended, and reports whether it is news.
func (o *outage) begin(began time.Time) (news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == 0 {
		if began.Before(o.since) {
			return false
		}
		o.since, news = time.Now(), true
	}
	o.calls++
	return news
}

// end notes a call that the store answered. If that ends an outage, calls is how
// many the outage had ended, else 0.
func (o *outage) end(began time.Time) (calls int, lasted time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == 0 || began.Before(o.since) {
		return 0, 0
	}
	now := time.Now()
	calls, lasted = o.calls, now.Sub(o.since)
	o.calls, o.since = 0, now
	return calls, lasted
}

// noteStore reports what the outcome of a call says about the store; nothing, if
// its context has ended.
func (in *Inbox[Tx]) noteStore(ctx context.Context, began time.Time, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if calls, lasted := in.outage.end(began); calls > 0 {
			in.report(ctx, Event{Kind: EventRecovered, Count: calls, Duration: lasted})
		}
	case isOutage(err):
		level := slog.LevelDebug
		if in.outage.begin(began) {
			level = slog.LevelError
		}
		in.report(ctx, Event{Kind: EventOutage, Level: level, Count: 1, Err: err})
	}
}

// isOutage reports an error of the store. What a handler calls Permanent is its
// own, even if it is such an error, as that of another store it uses.
func isOutage(err error) bool {
	permanent, isPermanent := errors.AsType[*permanentError](err)
	for _, outage := range [...]error{idempotency.ErrUnavailable, idempotency.ErrCommitUnknown, idempotency.ErrNotMigrated} {
		if errors.Is(err, outage) && (!isPermanent || !safelyIs(permanent, outage)) {
			return true
		}
	}
	return false
}
