package outbox

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// pruneBatch bounds one step: its locks and its transaction stay short.
	pruneBatch = 1000

	// pruneKept bounds what a round looks at and must leave where it is, as all that a
	// lane holds back which is held up: it costs as much in each pass, to no effect.
	pruneKept = 100_000

	// firstPrune is within what time of its start an instance prunes for the
	// first time, or processes that live for a minute would never do.
	firstPrune = 10 * time.Second

	// pruneEvery is how often, half to one and a half of it: instances started
	// together drift apart.
	pruneEvery = time.Minute
)

// pruner deletes what no relay needs any more, for as long as a relay runs.
type pruner struct {
	*Relay

	// next is where the pass over the log goes on, 0 for a new one.
	next int64
	// abandoned are the relays that are passed over.
	abandoned map[string]bool
}

// prune goes on until ctx ends. A statement that is under way then ends by its own
// deadline, or with background.
func (r *Relay) prune(ctx, background context.Context) {
	p := pruner{Relay: r}
	for pause := rand.N(firstPrune); ; pause = pruneEvery/2 + rand.N(pruneEvery) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		p.round(ctx, background)
	}
}

// round makes step after step until the pass is over, another instance is at it, or it
// has seen enough of what must stay. The next round goes on from there, or a log
// with much of that would be read as a whole, once a minute and instance.
func (p *pruner) round(ctx, background context.Context) {
	began, total, kept := time.Now(), 0, 0
	for kept < pruneKept {
		call, cancel := context.WithTimeout(background, storeTimeout)
		pruned, err := p.store.PruneLog(call, p.next, pruneBatch, p.AbandonAfter)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				p.report.pruneFailed(err)
			}
			break
		}
		if pruned.Looked > 0 { // else another one may be at it, and nobody has looked for them
			p.noteAbandoned(pruned.Abandoned)
		}
		total += pruned.Events
		kept += pruned.Looked - pruned.Events
		before := p.next
		if p.next = pruned.Next; p.next <= before || ctx.Err() != nil {
			break
		}
	}
	if total > 0 {
		p.report.notice(Notice{Kind: NoticePruned, Lane: -1, Count: total, Duration: time.Since(began)})
	}
}

// noteAbandoned reports relays that were not among them before.
func (p *pruner) noteAbandoned(relays []string) {
	before := p.abandoned
	p.abandoned = make(map[string]bool, len(relays))
	for _, name := range relays {
		p.abandoned[name] = true
		if !before[name] {
			p.report.notice(Notice{Kind: NoticeAbandoned, Relay: name, Lane: -1, Count: 1, Duration: p.AbandonAfter})
		}
	}
}
