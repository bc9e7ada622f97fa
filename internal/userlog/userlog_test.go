package userlog_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/onceward/onceward/internal/userlog"
)

func TestLinesReachTheHandlerOfTheUser(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	handler := slog.NewTextHandler(&lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	logger := userlog.Guard(slog.New(handler), func() { t.Error("nothing has panicked") })
	logger.With("a", 1).WithGroup("g").Info("line", "b", 2)
	logger.Debug("nobody listens")
	if got, want := lines.String(), "level=INFO msg=line a=1 g.b=2\n"; got != want {
		t.Errorf("logged %q, want %q", got, want)
	}
}

func TestPanicOfAnyMethodOfTheHandlerIsToldAndEndsNothing(t *testing.T) {
	t.Parallel()
	for method, log := range map[string]func(*slog.Logger){
		"Enabled":   func(l *slog.Logger) { l.Info("line") },
		"Handle":    func(l *slog.Logger) { l.Info("line") },
		"WithAttrs": func(l *slog.Logger) { l.With("a", 1).Info("line") },
		"WithGroup": func(l *slog.Logger) { l.WithGroup("g").Info("line") },
	} {
		panics := 0
		log(userlog.Guard(slog.New(panicking(method)), func() { panics++ }))
		if panics != 1 {
			t.Errorf("%s panicked, and that was told %d times", method, panics)
		}
		log(userlog.Guard(slog.New(panicking(method)), nil))
	}
	userlog.Guard(&slog.Logger{}, nil).Info("a logger without a handler")
}

// panicking is a handler whose method of that name panics.
type panicking string

func (p panicking) call(method string) {
	if string(p) == method {
		panic(method)
	}
}

func (p panicking) Enabled(context.Context, slog.Level) bool {
	p.call("Enabled")
	return true
}

func (p panicking) Handle(context.Context, slog.Record) error {
	p.call("Handle")
	return nil
}

func (p panicking) WithAttrs([]slog.Attr) slog.Handler {
	p.call("WithAttrs")
	return p
}

func (p panicking) WithGroup(string) slog.Handler {
	p.call("WithGroup")
	return p
}
