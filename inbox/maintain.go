package inbox

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// pruneBatch bounds one deletion: its locks and its transaction stay short.
const pruneBatch = 1000

// firstPrune is within what time of its start a process prunes for the first time:
// at once, or processes that live for a minute would never do, but not all at
// the same moment.
const firstPrune = 5 * time.Second

// Maintain implements Processor. It prunes every hundredth of the retention,
// between ten seconds and ten minutes, with jitter; the first time within five
// seconds. An error of the store is logged and the next round tries again. With an
// invalid configuration it returns at once: Check says why.
func (in *Inbox[Tx]) Maintain(ctx context.Context) {
	if in.unusable() != nil {
		return
	}
	interval := min(max(in.retention/100, 10*time.Second), 10*time.Minute)
	for pause := rand.N(firstPrune); ; {
		wait(ctx, pause)
		if ctx.Err() != nil {
			return
		}
		in.prune(ctx)
		// Half to one and a half: processes started together drift apart.
		pause = interval/2 + rand.N(interval)
	}
}

// prune deletes batch after batch until one is short: nothing is left then, or
// another process is at it.
func (in *Inbox[Tx]) prune(ctx context.Context) {
	start, total := time.Now(), 0
	for {
		n, err := in.store.Prune(ctx, pruneBatch)
		if err != nil {
			if ctx.Err() == nil {
				in.logger.LogAttrs(ctx, slog.LevelWarn, "inbox: pruning failed, it will be tried again",
					slog.String("consumer", in.consumer), slog.String("error", errorText(err, logErrorBytes)))
			}
			break
		}
		total += n
		if n < pruneBatch || ctx.Err() != nil {
			break
		}
	}
	if total > 0 {
		in.report(ctx, Event{Kind: EventPruned, Count: total, Duration: time.Since(start)})
	}
}
