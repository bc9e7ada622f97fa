package outbox

import "time"

// firstLook is the shortest pause between two looks at the log.
const firstLook = time.Millisecond

// poll is when to look for new events: soon after some came or are near, and
// twice as late each time that there were none.
type poll struct {
	limit time.Duration
	pause time.Duration
	at    time.Time
}

// due reports whether it is time to look, and sets the next time.
func (p *poll) due(now time.Time) bool {
	if now.Before(p.at) {
		return false
	}
	p.pause = min(max(p.pause, firstLook), p.limit)
	p.at = now.Add(p.pause)
	p.pause *= 2
	return true
}

func (p *poll) soon(now time.Time) {
	p.pause = firstLook
	if at := now.Add(firstLook); at.Before(p.at) {
		p.at = at
	}
}

func (p *poll) now(now time.Time) {
	p.pause, p.at = firstLook, now
}
