// Package servers lends a benchmark the real servers that package stack of the
// integration module gives to tests, with the settings a benchmark needs.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// Run runs main and returns the exit status of the program: 0, or 1 if main
// returned an error or a server could not be had. Servers that main asked for
// are stopped before Run returns; an interrupt cancels main's context.
func Run(name string, main func(ctx context.Context, p *Program) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	p := &Program{name: name, ctx: ctx}
	done := make(chan error, 1)
	// A goroutine of its own, because FailNow ends the one it is called on.
	go func() {
		err := errors.New("ended early")
		defer func() { done <- err }()
		err = main(ctx, p)
	}()
	err := <-done
	p.cleanup()
	if err != nil && !p.Failed() {
		p.Logf("%v", err)
	}
	if err != nil || p.Failed() {
		return 1
	}
	return 0
}

// Program is what package stack knows of its caller. It stands in for a test:
// the stack uses no other methods of testing.TB than these.
type Program struct {
	testing.TB // nil: holds the interface's unexported method

	name string
	ctx  context.Context //nolint:containedctx // Context() is part of testing.TB

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

// Helper is of no use here.
func (p *Program) Helper() {}

// Name is part of the names of databases and topics.
func (p *Program) Name() string { return p.name }

// Context ends when the program is interrupted.
func (p *Program) Context() context.Context { return p.ctx }

// Cleanup registers the end of a server. Last registered, first called.
func (p *Program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *Program) cleanup() {
	p.mu.Lock()
	cleanups := slices.Clone(p.cleanups)
	p.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		f()
	}
}

// Logf writes to standard error: standard output holds the figures.
func (p *Program) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.name+": "+format+"\n", args...)
}

// Errorf writes a line and makes the program fail in the end.
func (p *Program) Errorf(format string, args ...any) {
	p.Logf(format, args...)
	p.Fail()
}

// Fatalf writes a line and makes the program fail now.
func (p *Program) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

// Fatal is Fatalf without a format.
func (p *Program) Fatal(args ...any) { p.Fatalf("%s", fmt.Sprint(args...)) }

// Fail makes the program fail in the end.
func (p *Program) Fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

// FailNow makes the program fail now.
func (p *Program) FailNow() {
	p.Fail()
	runtime.Goexit()
}

// Failed reports whether the program is to fail.
func (p *Program) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}
