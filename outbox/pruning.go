package outbox

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// pruneBatch bounds one deletion: its locks and its transaction stay short.
	pruneBatch = 1000

	// firstPrune is within what time of its start an instance prunes for the
	// first time, or processes that live for a minute would never do.
	firstPrune = 10 * time.Second

	// pruneEvery is how often, half to one and a half of it: instances started
	// together drift apart.
	pruneEvery = time.Minute
)

// prune deletes what no relay needs any more, until ctx ends. A statement that is
// under way then ends by its own deadline, or with background.
func (r *Relay) prune(ctx, background context.Context) {
	abandoned := map[string]bool{}
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
		abandoned = r.pruneRound(ctx, background, abandoned)
	}
}

// pruneRound deletes batch after batch until one is short: nothing is left then, or
// another instance is at it. It returns the relays that are passed over.
func (r *Relay) pruneRound(ctx, background context.Context, before map[string]bool) map[string]bool {
	began, total, abandoned := time.Now(), 0, before
	for {
		call, cancel := context.WithTimeout(background, storeTimeout)
		pruned, err := r.store.PruneLog(call, pruneBatch, r.AbandonAfter)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				r.report.pruneFailed(err)
			}
			break
		}
		abandoned = make(map[string]bool, len(pruned.Abandoned))
		for _, name := range pruned.Abandoned {
			abandoned[name] = true
			if !before[name] {
				r.report.notice(Notice{Kind: NoticeAbandoned, Relay: name, Lane: -1, Count: 1, Duration: r.AbandonAfter})
			}
		}
		before = abandoned
		total += pruned.Events
		if pruned.Events < pruneBatch || ctx.Err() != nil {
			break
		}
	}
	if total > 0 {
		r.report.notice(Notice{Kind: NoticePruned, Lane: -1, Count: total, Duration: time.Since(began)})
	}
	return abandoned
}
