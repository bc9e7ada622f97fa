package outbox

import (
	"log/slog"
	"time"
)

// pause has a lane wait, because its destination is unavailable. It spends no attempt.
func (in *instance) pause(l *lane, cause error) {
	now := time.Now()
	if l.pauses == 0 {
		l.pausedSince = now
	}
	l.pauses++
	level := slog.LevelDebug
	if in.paused == 0 && l.pauses == 1 {
		level = slog.LevelWarn
	}
	if l.pauses == 1 {
		in.paused++
	}
	pause := in.backoff(l.pauses)
	l.waiting, l.resumeAt = true, now.Add(pause)
	in.forget(l)
	in.report.notice(Notice{Kind: NoticePaused, Level: level, Lane: l.number, Count: 1, Duration: pause, Err: cause})
}

// unpause has lanes tried again whose backoff is over.
func (in *instance) unpause(now time.Time) {
	if in.paused == 0 {
		return
	}
	for _, l := range in.owned {
		if l.waiting && !now.Before(l.resumeAt) {
			l.waiting, l.look = false, true
			in.dueBy(now)
		}
	}
}

// resume: the destination of a lane answers again.
func (in *instance) resume(l *lane) {
	if l.pauses == 0 {
		return
	}
	lasted := time.Since(l.pausedSince)
	in.resumed(l)
	level := slog.LevelDebug
	if in.paused == 0 {
		level = slog.LevelInfo
	}
	in.report.notice(Notice{Kind: NoticeResumed, Level: level, Lane: l.number, Count: 1, Duration: lasted})
}

// resumed: the lane is not one of those that are paused.
func (in *instance) resumed(l *lane) {
	if l.pauses > 0 {
		in.paused--
	}
	l.pauses, l.waiting = 0, false
}
