package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// startDeadline bounds one start of a server on a busy machine, from launch to its first answer.
const startDeadline = 90 * time.Second

// backend runs one server: a process of this machine or a container. Its methods keep ports and data.
type backend interface {
	start(ctx context.Context) error
	stop(ctx context.Context) error
	kill(ctx context.Context) error
	alive(ctx context.Context) error
	tail(ctx context.Context) string   // the end of the server's log
	discard(ctx context.Context) error // kill, and data and all go away
}

// tailLength is how much of a server's log an error shows, in bytes.
const tailLength = 4096

// launch starts the server and waits until probe succeeds. A server that exits meanwhile ends the wait at once. One that
// does not serve is left for its owner to discard.
func launch(ctx context.Context, name string, b backend, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := b.start(ctx); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	var dead error
	err := poll(ctx, func(ctx context.Context) error {
		if dead = b.alive(ctx); dead != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return probe(ctx)
	})
	if err = errors.Join(dead, err); err != nil {
		return fmt.Errorf("%s does not serve: %w; the end of its log:\n%s", name, err, b.tail(context.WithoutCancel(ctx)))
	}
	return nil
}

// controlled is a test's grip on a server of its own.
type controlled struct {
	t     testing.TB
	name  string
	back  backend
	probe func(context.Context) error
}

// Kill ends the server and all its child processes with SIGKILL and returns when they are gone. Ports and data stay.
// A failure is reported with t.Errorf, so any goroutine of the test may call Kill, Stop and Start.
func (c *controlled) Kill() {
	c.t.Helper()
	c.do("kill", c.back.kill)
}

// Stop shuts the server down in its own orderly way and returns when it is gone.
func (c *controlled) Stop() {
	c.t.Helper()
	c.do("stop", c.back.stop)
}

// Start starts the server again on the same ports and data and returns when it serves.
func (c *controlled) Start() {
	c.t.Helper()
	c.do("start", func(ctx context.Context) error { return launch(ctx, c.name, c.back, c.probe) })
}

func (c *controlled) do(what string, f func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	if err := f(ctx); err != nil {
		c.t.Errorf("stack: %s %s: %v", what, c.name, err)
	}
}

// shared starts a server once for the whole test binary; every caller gets the same server or the same error.
type shared[S any] struct {
	once   sync.Once
	server S
	err    error
}

func (s *shared[S]) get(t testing.TB, start func(context.Context) (S, error)) S {
	t.Helper()
	s.once.Do(func() { s.server, s.err = start(context.Background()) })
	if s.err != nil {
		t.Fatalf("stack: %v", s.err)
	}
	return s.server
}
