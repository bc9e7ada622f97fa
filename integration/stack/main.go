package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// stopDeadline bounds the cleanup of everything this process started.
const stopDeadline = 30 * time.Second

// Main runs the tests of m, stops every server that this process started and removes its folders. It returns the exit
// code for os.Exit: that of the tests, or 1 if they passed and the cleanup failed.
func Main(m *testing.M) int {
	code := m.Run()

	ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	if err := held.release(ctx); err != nil {
		announcef("cleanup failed: %v", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// announcef prints one line about the stack itself, once for a whole test binary, where no single test's log would do.
func announcef(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "stack: "+format+"\n", args...)
}

// held is what this process holds for all its tests.
var held holdings

// holdings are the shared servers, the folder under which all servers of this process keep their files, and the watchdog.
type holdings struct {
	mu       sync.Mutex
	dir      string
	watchdog *watchdog
	stops    []func(context.Context) error
}

// atExit registers the end of a shared server. Last registered, first stopped.
func (h *holdings) atExit(stop func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stops = append(h.stops, stop)
}

// folder makes a new folder whose parents every user can pass, since some servers run under an unprivileged account.
// It goes away with release, or by the watchdog.
func (h *holdings) folder(pattern string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.prepare(); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(h.dir, pattern+"-*")
	if err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", pattern, err)
	}
	return dir, nil
}

// guard returns the watchdog, started if need be.
func (h *holdings) guard() (*watchdog, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.prepare(); err != nil {
		return nil, err
	}
	return h.watchdog, nil
}

// prepare makes the folder and the watchdog; h.mu is held.
func (h *holdings) prepare() error {
	if h.watchdog != nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "onceward-test-*")
	if err != nil {
		return fmt.Errorf("make the folder of the test servers: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("find the folder of the test servers: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("open the folder of the test servers to other accounts: %w", err)
	}
	w, err := startWatchdog(dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	h.dir, h.watchdog = dir, w
	return nil
}

func (h *holdings) release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, stop := range slices.Backward(h.stops) {
		errs = append(errs, stop(ctx))
	}
	h.stops = nil
	if h.watchdog != nil {
		errs = append(errs, h.watchdog.dismiss(), os.RemoveAll(h.dir))
		h.watchdog = nil
	}
	return errors.Join(errs...)
}
