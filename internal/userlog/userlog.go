// Package userlog guards what is told to a logger that is not ours.
package userlog

import (
	"context"
	"log/slog"
)

// Guard returns a logger that writes to logger and never panics, though the handler
// may, which is the user's. What is logged has happened: it must not look as if it had
// not, nor end the process. Of each panic panicked is told, unless it is nil; nobody
// else can be.
func Guard(logger *slog.Logger, panicked func()) *slog.Logger {
	return slog.New(handler{logger.Handler(), panicked})
}

type handler struct {
	user     slog.Handler
	panicked func()
}

// Enabled says no if the user's handler can't tell.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	defer h.catch()
	return h.user.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	defer h.catch()
	return h.user.Handle(ctx, r)
}

// WithAttrs leaves the attributes out if the user's handler can't take them.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.change(func() { h.user = h.user.WithAttrs(attrs) })
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.change(func() { h.user = h.user.WithGroup(name) })
	return h
}

func (h handler) change(user func()) {
	defer h.catch()
	user()
}

// catch is deferred around every call of the user's handler.
func (h handler) catch() {
	if recover() != nil && h.panicked != nil {
		h.panicked()
	}
}
