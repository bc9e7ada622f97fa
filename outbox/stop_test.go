package outbox_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func TestStopLetsCallsEndAndSavesThem(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			pause(ctx, 2*time.Second)
			return ctx.Err()
		}
		f.append("a1", "b1", "c1", "d1")
		i := f.run()
		f.pass(time.Second)
		began := time.Now()
		i.stop()
		if took := time.Since(began); took > 5*time.Second {
			f.Errorf("stopping took %v", took)
		}
		f.wantSent("a1", "b1", "c1", "d1")
		f.wantOwned()
		f.wantSaved()
	})
}

func TestStopEndsCallsAfterStopTimeout(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.broker.on = func(ctx context.Context, _ outbox.Event) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f.append("a1")
		i := f.run(func(c *outbox.RelayConfig) { c.StopTimeout = 3 * time.Second })
		f.pass(time.Second)
		began := time.Now()
		i.stop()
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			f.Errorf("stopping took %v", took)
		}
	})
}

func TestLeaseUnderWayAtTheStopTakesNoLanesBehindIt(t *testing.T) {
	simulate(t, func(f *fixture) {
		relay := outbox.NewRelay(slowLeases{f.store}, f.broker, f.config())
		ctx, cancel := context.WithCancel(f.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		f.pass(leaseTakes + 10*time.Second/4 + leaseTakes/2) // in the midst of the second one
		f.wantOwned(4)
		cancel()
		if err := <-ended; err != nil {
			f.Errorf("Run returned %v", err)
		}
		f.pass(leaseTakes)
		f.wantOwned()
	})
}

const leaseTakes = time.Second

// slowLeases takes a while for each lease, and goes on with it when the caller has given it up, as a
// server does whose client is gone.
type slowLeases struct{ *fakeStore }

func (s slowLeases) Lease(ctx context.Context, relay, instance string, lease time.Duration) (outbox.Lease, error) {
	type result struct {
		outbox.Lease

		err error
	}
	done := make(chan result, 1)
	go func() {
		pause(context.WithoutCancel(ctx), leaseTakes)
		l, err := s.fakeStore.Lease(context.WithoutCancel(ctx), relay, instance, lease)
		done <- result{l, err}
	}()
	select {
	case r := <-done:
		return r.Lease, r.err
	case <-ctx.Done():
		return outbox.Lease{}, ctx.Err()
	}
}

func TestPublisherThatDoesNotReturnIsReportedAndLeftBehind(t *testing.T) {
	simulate(t, func(f *fixture) {
		release := make(chan struct{})
		f.broker.on = func(context.Context, outbox.Event) error {
			<-release
			return nil
		}
		f.append("a1")
		i := f.run(func(c *outbox.RelayConfig) { c.PublishTimeout, c.StopTimeout = time.Second, time.Second })
		f.pass(time.Minute)
		if notice := f.wantNotices(outbox.NoticeStuck, 1)[0]; notice.Count != 1 || notice.Level.String() != "ERROR" {
			f.Errorf("notice %+v", notice)
		}
		i.cancel()
		if err := <-i.ended; err == nil || !strings.Contains(err.Error(), "did not return") {
			f.Errorf("Run returned %v", err)
		}
		close(release)
	})
}

func TestRelayRunsOnceAtATime(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run()
		f.pass(time.Second)
		if err := i.Run(f.Context()); err == nil || !strings.Contains(err.Error(), "runs already") {
			f.Errorf("the second Run returned %v", err)
		}
		i.stop()
		ctx, cancel := context.WithTimeout(f.Context(), time.Second)
		defer cancel()
		f.append("a1")
		if err := i.Run(ctx); err != nil {
			f.Errorf("Run once more: %v", err)
		}
		f.wantSent("a1")
	})
}

func TestRunWhoseContextHasEndedDoesNothing(t *testing.T) {
	simulate(t, func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		if err := outbox.NewRelay(f.store, f.broker, f.config()).Run(ctx); err != nil {
			f.Error(err)
		}
		if n := f.total(); n != 0 {
			f.Errorf("%d statements", n)
		}
	})
}

func TestReportsThatPanicChangeNothing(t *testing.T) {
	for name, panicking := range map[string]func(*outbox.RelayConfig){
		"hook":                                 func(c *outbox.RelayConfig) { c.OnNotice = func(outbox.Notice) { panic("hook") } },
		"hook of a value that contains itself": func(c *outbox.RelayConfig) { c.OnNotice = func(outbox.Notice) { panic(ownValue()) } },
		"logger":                               func(c *outbox.RelayConfig) { c.Logger = slog.New(panickingLog{}) },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				f.append("a1")
				i := f.run(panicking)
				f.pass(time.Second)
				f.wantSent("a1")
				if i.Stats().ReportPanics == 0 || name == "hook" && !strings.Contains(f.logs.String(), "OnNotice panicked") {
					f.Errorf("stats %+v", i.Stats())
				}
				i.stop()
				f.wantSaved()
			})
		})
	}
}

type panickingLog struct{ slog.Handler }

func (panickingLog) Enabled(context.Context, slog.Level) bool  { return true }
func (panickingLog) Handle(context.Context, slog.Record) error { panic("disk") }

func TestLogNeverShowsPayloadsAndKeys(t *testing.T) {
	simulate(t, func(f *fixture) {
		secret := outbox.Message{ID: "id", Topic: "orders", Key: []byte("secret-key"), Payload: []byte("secret-payload")}
		f.refuse(errRefused, "id")
		tx := f.store.Begin()
		f.appendIn(tx, secret)
		f.store.Commit(tx)
		i := f.run(parkKey, func(c *outbox.RelayConfig) { c.MaxAttempts = 2 })
		f.pass(time.Minute)
		i.stop()
		if logs := f.logs.String(); strings.Contains(logs, "secret") || !strings.Contains(logs, errRefused.Error()) {
			f.Errorf("log:\n%s", logs)
		}
	})
}
