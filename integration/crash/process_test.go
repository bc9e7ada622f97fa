package crash

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// patience bounds every wait for a member or a server on a busy machine.
const patience = 60 * time.Second

// process is a member as its parent sees it.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd

	speaking sync.Mutex
	words    io.WriteCloser

	mu      sync.Mutex
	counts  map[inbox.EventKind]int // by kind of line
	changed chan struct{}           // closed and renewed with every line
	log     tail

	ended chan struct{} // closed when the process is gone and its output read
}

// start runs this test binary as a member. It is killed when the test ends.
func start(t testing.TB, name string, o orders) *process {
	t.Helper()
	text, err := json.Marshal(o) //nolint:musttag // both ends are this program
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersVariable+"="+string(text))
	p := &process{
		t: t, name: name, cmd: cmd,
		counts: map[inbox.EventKind]int{}, changed: make(chan struct{}), ended: make(chan struct{}),
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
			t.Errorf("member %s has a data race", name)
		}
		if t.Failed() {
			t.Logf("member %s: %v; the end of its log:\n%s", name, cmd.ProcessState, p.log.String())
		}
	})
	return p
}

func (p *process) listen(lines io.Reader) {
	defer close(p.ended)
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		kind, _, whole := strings.Cut(scanner.Text(), " ")
		if !whole {
			continue // cut by SIGKILL
		}
		p.mu.Lock()
		p.counts[inbox.EventKind(kind)]++
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
}

func (p *process) count(kind inbox.EventKind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[kind]
}

// await waits until the member has reported n of a kind, and reports false if it ended first.
func (p *process) await(kind inbox.EventKind, n int) bool {
	p.t.Helper()
	deadline := time.NewTimer(patience)
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
			return p.count(kind) >= n
		case <-deadline.C:
			p.t.Errorf("member %s reported %q %d times of %d within %v", p.name, kind, got, n, patience)
			return false
		}
	}
}

// awaitEnd waits for the end of a member that kills itself. It kills one that is still there after the time, and then
// reports false.
func (p *process) awaitEnd(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		p.kill()
		return false
	}
}

func (p *process) say(word string) {
	p.speaking.Lock()
	defer p.speaking.Unlock()
	_, _ = fmt.Fprintln(p.words, word) // a member that is gone hears nothing
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// killed reports whether the member, now gone, died by SIGKILL.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stop asks the member to leave, which must end in a clean drain.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("member %s is gone: %v: %v", p.name, err, p.cmd.ProcessState)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("member %s left with %v, want a clean drain", p.name, p.cmd.ProcessState)
		}
	case <-timer.C:
		p.t.Errorf("member %s did not leave within %v of SIGTERM", p.name, patience)
		p.kill()
	}
}

// alive reports whether the member still runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// freeze stops the member until thaw is called. A shell wakes it even if this process dies meanwhile, and then it ends
// by itself.
func (p *process) freeze() (thaw func()) {
	p.t.Helper()
	shell := exec.Command("sh", "-c", `kill -STOP "$1" && echo frozen && read -r _; kill -CONT "$1"`, "freeze",
		strconv.Itoa(p.cmd.Process.Pid))
	words, err := shell.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := shell.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		p.t.Fatalf("freeze member %s: %v", p.name, err)
	}
	if line, err := bufio.NewReader(answer).ReadString('\n'); err != nil {
		p.t.Errorf("freeze member %s: %q, %v", p.name, line, err)
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
