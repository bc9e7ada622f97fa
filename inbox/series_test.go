package inbox_test

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/onceward/onceward/inbox"
)

// goroutine is the caller's name in a stack trace, "goroutine 42".
func goroutine() string {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	name, _, _ := bytes.Cut(stack, []byte(" ["))
	return string(name)
}

// A goroutine that waits for ever fails the bubble: the test also proves that
// nothing is left when Process and Redrive have returned.
func TestOneGoroutineRunsTheTransactionsOfAProcess(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(){
		"abandoned": func() { <-time.After(time.Minute) },
		"goexit":    runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, inbox.HandlerTimeout(time.Second))
				var ran []string
				run := func(_ context.Context, _ *fakeTx, m inbox.Message) error {
					f.mu.Lock()
					ran = append(ran, goroutine())
					f.mu.Unlock()
					if m.ID == "f" {
						keep()
					}
					return nil
				}
				f.on = run
				f.wantOutcomes(f.process(messages("a", "b", "c", "d")...), "processed, processed, processed, processed")
				if slices.Contains(ran, goroutine()) || len(slices.Compact(ran)) != 1 {
					t.Errorf("Process ran in %q, called by %s", ran, goroutine())
				}

				f.dead(messages("e", "f", "g", "h")...)
				f.on = run
				f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 4, Redriven: 3, Failed: 1})
				<-time.After(time.Hour) // the abandoned one has returned
			})
		})
	}
}

// The timer of a call is shared: a handler that came back late must not leave
// the next one more time than HandlerTimeout.
func TestHandlerAfterALateOneHasItsOwnTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(100*time.Millisecond))
		var told time.Duration
		f.on = func(ctx context.Context, _ *fakeTx, m inbox.Message) error {
			start := time.Now()
			<-ctx.Done()
			if m.ID == "b" {
				told = time.Since(start)
				return ctx.Err()
			}
			return nil
		}
		f.wantOutcomes(f.process(messages("a", "b")...), "processed, failed")
		if told != 100*time.Millisecond {
			t.Errorf("the second handler was told after %v", told)
		}
	})
}

// What outlives the Process of an abandoned handler, its error and what the inbox
// remembers, holds no bytes of the message, which was lent.
func TestErrorOfAnAbandonedHandlerHoldsNoPayload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(time.Second))
		hang := make(chan struct{})
		f.on = func(context.Context, *fakeTx, inbox.Message) error {
			<-hang
			return nil
		}
		var results []inbox.Result
		payload := func() weak.Pointer[byte] {
			ms := messages("a")
			ms[0].Payload = make([]byte, 1<<20)
			results = f.process(ms...)
			return weak.Make(&ms[0].Payload[0])
		}()
		f.wantOutcomes(results, "failed")
		close(hang)
		synctest.Wait()
		runtime.GC()
		if payload.Value() != nil {
			t.Error("the payload is still held")
		}
		runtime.KeepAlive(results)
		runtime.KeepAlive(f)
	})
}
