package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestEveryOutcomeIsCountedLoggedAndTold(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(10), inbox.MaxAttempts(2))
	f.failOn(errHandler, "bad")
	f.process(messages("a", "a", "", "bad")...)
	f.process(messages("bad")...)
	f.store.beginFaults = []error{idempotency.ErrUnavailable}
	if _, err := f.inbox.Process(t.Context(), messages("b")); err == nil {
		t.Fatal("no error")
	}
	stats := f.inbox.Stats()
	if stats.Processed != 1 || stats.Duplicates != 1 || stats.Failed != 1 || stats.Outages != 1 ||
		len(stats.Parked) != 2 || stats.Parked[inbox.ReasonMissingID] != 1 || stats.Parked[inbox.ReasonAttempts] != 1 {
		t.Errorf("%+v", stats)
	}
	want := []struct {
		kind     inbox.EventKind
		level    slog.Level
		attempts int
		reason   inbox.Reason
	}{
		{inbox.EventProcessed, slog.LevelDebug, 0, ""},
		{inbox.EventDuplicate, slog.LevelDebug, 0, ""},
		{inbox.EventParked, slog.LevelError, 0, inbox.ReasonMissingID},
		{inbox.EventFailed, slog.LevelWarn, 1, ""},
		{inbox.EventParked, slog.LevelError, 2, inbox.ReasonAttempts},
		{inbox.EventOutage, slog.LevelError, 0, ""},
	}
	if len(f.events) != len(want) {
		t.Fatalf("events are %+v", f.events)
	}
	for i, event := range f.events {
		w := want[i]
		if event.Kind != w.kind || event.Level != w.level || event.Attempts != w.attempts || event.Reason != w.reason ||
			event.Count != 1 || event.Consumer != "billing" || (event.Err == nil) != (event.Level == slog.LevelDebug) {
			t.Errorf("event %d is %+v", i, event)
		}
	}
	if lines := strings.Count(f.logs.String(), "\n"); lines != len(want) {
		t.Errorf("%d log lines:\n%s", lines, f.logs.String())
	}
}

func TestPayloadsKeysAndHeadersAreNeverShown(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	secret := message("a")
	secret.Key = []byte("SECRET")
	secret.Payload = []byte("SECRET")
	secret.Headers = []inbox.Header{{Name: "SECRET", Value: []byte("SECRET")}}
	f.dead(secret)
	behind := secret
	behind.ID = "b"
	f.process(behind, secret)
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 2})
	for _, event := range f.events {
		if event.Message.Key != nil || event.Message.Payload != nil || event.Message.Headers != nil {
			t.Errorf("event is %+v", event)
		}
	}
	if log := f.logs.String(); strings.Contains(log, "SECRET") || !strings.Contains(log, "message_id=a") {
		t.Errorf("log is:\n%s", log)
	}
}

func TestErrorsAreValidTextCutToEightKilobytesInARowAndOneInTheLog(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn(inbox.Permanent(errors.New("bad\x00 \xff "+strings.Repeat("ü", 5000))), "a")
	f.process(message("a"))
	text := f.store.letters[0].Error
	if len(text) > 8<<10 || len(text) < 8<<10-10 || !strings.HasPrefix(text, "fake: work: bad  ü") || !strings.HasSuffix(text, "ü…") || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %.40q", len(text), text)
	}
	if line := f.logs.String(); len(line) > 2000 || !strings.Contains(line, "ü…") {
		t.Errorf("log line of %d bytes", len(line))
	}
}

func TestLongIDsAreLoggedInTheirStoredForm(t *testing.T) {
	t.Parallel()
	f := setup(t)
	m := message(strings.Repeat("i", 10_000))
	m.Position = "orders/0/1"
	f.wantOutcomes(f.process(m), "processed")
	if log := f.logs.String(); !strings.Contains(log, "message_id=sha256:") || len(log) > 1000 {
		t.Errorf("log is %.2000s", log)
	}
}

func TestPanicsAreLoggedWithTheirStack(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.HandlerTimeout(time.Minute))
	f.inbox = inbox.New(f.store, "billing", panicky, f.options(nil)...)
	f.process(message("a"))
	if log := f.logs.String(); !strings.Contains(log, "inbox_test.panicky") {
		t.Errorf("log is %s", log)
	}
}

func panicky(context.Context, *fakeTx, inbox.Message) error { panic("why not") }

func TestHookAndLoggerThatPanicAreCountedAndNothingElse(t *testing.T) {
	t.Parallel()
	f := setup(t)
	hook := inbox.OnEvent(func(context.Context, inbox.Event) { panic("metrics are full") })
	f.inbox = inbox.New(f.store, "billing", panicky, f.options([]inbox.Option{hook, inbox.MaxAttempts(1)})...)
	f.wantOutcomes(f.process(message("a")), "parked")
	if log := f.logs.String(); !strings.Contains(log, "OnEvent panicked") || !strings.Contains(log, "metrics are full") || !strings.Contains(log, "set aside") {
		t.Errorf("log is %s", log)
	}
	f.inbox = inbox.New(f.store, "shipping", panicky, hook, inbox.MaxAttempts(1), inbox.Logger(slog.New(panickyLogs{})))
	f.wantOutcomes(f.process(message("a")), "parked")
	if n := f.inbox.Stats().ReportPanics; n != 3 {
		t.Errorf("%d panics counted, want those of the hook, its log line and the event's", n)
	}
}

type panickyLogs struct{ slog.Handler }

func (panickyLogs) Enabled(context.Context, slog.Level) bool  { return true }
func (panickyLogs) Handle(context.Context, slog.Record) error { panic("disk") }
