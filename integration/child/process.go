// Package child runs the test binary once more, as a process that may be killed, frozen or stopped, and counts what it reports.
package child

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait for a process or a server on a busy machine.
const Patience = 60 * time.Second

// Process is a child as its parent sees it. K are the kinds of what it reports.
type Process[K ~string] struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	read func(line string) (kind K, n int, whole bool)

	speaking sync.Mutex
	words    io.WriteCloser

	mu      sync.Mutex
	counts  map[K]int
	changed chan struct{} // closed and renewed with every line
	log     tail

	ended chan struct{} // closed when the process is gone and its output read
}

// Start runs this test binary with orders, as JSON, in the environment's variable; its TestMain finds it there. read counts a
// line of its standard output; one that a SIGKILL has cut is not whole. Its standard input is held open: its end is the
// parent's. It is killed when the test ends, and fails it if it had a data race.
func Start[K ~string](t testing.TB, name, variable string, orders any, read func(line string) (kind K, n int, whole bool)) *Process[K] {
	t.Helper()
	text, err := json.Marshal(orders)
	if err != nil {
		t.Fatal(err)
	}
	// Without the test's context: how it ends is the test's business.
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	p := &Process[K]{
		t: t, name: name, cmd: cmd, read: read,
		counts: map[K]int{}, changed: make(chan struct{}), ended: make(chan struct{}),
	}
	cmd.Stderr = &p.log
	if p.words, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start member %s: %v", name, err)
	}
	go p.listen(lines)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if p.log.raced.Load() {
			t.Errorf("member %v has a data race", p)
		}
		if t.Failed() {
			t.Logf("member %v: %v; the end of its log:\n%s", p, cmd.ProcessState, p.log.String())
		}
	})
	return p
}

func (p *Process[K]) listen(lines io.Reader) {
	defer close(p.ended)
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		kind, n, whole := p.read(scanner.Text())
		if !whole {
			continue
		}
		p.mu.Lock()
		p.counts[kind] += n
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
}

// ID is the number of the process.
func (p *Process[K]) ID() int { return p.cmd.Process.Pid }

// String is the name it was started with, and its number.
func (p *Process[K]) String() string { return fmt.Sprintf("%s (%d)", p.name, p.ID()) }

// State says how it ended. Nil while it runs.
func (p *Process[K]) State() *os.ProcessState { return p.cmd.ProcessState }

// Count is how many it has reported of a kind.
func (p *Process[K]) Count(kind K) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[kind]
}

// Await waits until the member has reported n of a kind, and reports false if it ended first.
func (p *Process[K]) Await(kind K, n int) bool {
	p.t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		got, changed := p.counts[kind], p.changed
		p.mu.Unlock()
		if got >= n {
			return true
		}
		select {
		case <-changed:
		case <-p.ended:
			return p.Count(kind) >= n
		case <-deadline.C:
			p.t.Errorf("member %v reported %q %d times of %d within %v", p, kind, got, n, Patience)
			return false
		}
	}
}

// AwaitEnd waits for the end of a member that kills itself. It kills one that is still there after the time, and then
// reports false.
func (p *Process[K]) AwaitEnd(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		p.Kill()
		return false
	}
}

// Say writes a line to it.
func (p *Process[K]) Say(word string) {
	p.speaking.Lock()
	defer p.speaking.Unlock()
	_, _ = fmt.Fprintln(p.words, word) // a member that is gone hears nothing
}

// Kill ends it by SIGKILL, and waits for that.
func (p *Process[K]) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Killed reports whether the member, now gone, died by SIGKILL.
func (p *Process[K]) Killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Stop asks the member to leave, which must end in a clean end.
func (p *Process[K]) Stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("member %v is gone: %v: %v", p, err, p.cmd.ProcessState)
		return
	}
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("member %v left with %v, want a clean end", p, p.cmd.ProcessState)
		}
	case <-timer.C:
		p.t.Errorf("member %v did not leave within %v of SIGTERM", p, Patience)
		p.Kill()
	}
}

// Alive reports whether the member still runs.
func (p *Process[K]) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Freeze stops the member until thaw is called. A shell wakes it even if this process dies meanwhile, and then it ends
// by itself.
func (p *Process[K]) Freeze() (thaw func()) {
	p.t.Helper()
	shell := exec.CommandContext(context.Background(), "sh", "-c", `kill -STOP "$1" && echo frozen && read -r _; kill -CONT "$1"`, "freeze",
		strconv.Itoa(p.cmd.Process.Pid))
	words, err := shell.StdinPipe()
	if err != nil {
		p.t.Errorf("freeze: %v", err)
		return func() {}
	}
	answer, err := shell.StdoutPipe()
	if err != nil {
		p.t.Errorf("freeze: %v", err)
		return func() {}
	}
	if err := shell.Start(); err != nil {
		p.t.Errorf("freeze member %v: %v", p, err)
		return func() {}
	}
	if line, err := bufio.NewReader(answer).ReadString('\n'); err != nil {
		p.t.Errorf("freeze member %v: %q, %v", p, line, err)
	}
	return sync.OnceFunc(func() {
		_ = words.Close()
		_ = shell.Wait()
	})
}

// tail keeps the end of a member's log, and whether the race detector spoke in it.
type tail struct {
	raced atomic.Bool
	mu    sync.Mutex
	end   []byte
}

const tailBytes = 6 << 10

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(b, []byte("DATA RACE")) {
		l.raced.Store(true)
	}
	l.end = append(l.end, b...)
	if over := len(l.end) - 2*tailBytes; over > 0 {
		l.end = append(l.end[:0], l.end[len(l.end)-tailBytes:]...)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.end[max(0, len(l.end)-tailBytes):]))
}
