package outbox

import (
	"bufio"
	"bytes"
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

	"github.com/onceward/onceward/outbox"
)

// process is a member as its parent sees it.
type process struct {
	t   testing.TB
	cmd *exec.Cmd

	mu      sync.Mutex
	counts  map[outbox.NoticeKind]int // by kind of notice
	changed chan struct{}             // closed and renewed with every line
	log     tail

	ended chan struct{} // closed when the process is gone and its output read
}

// start runs this test binary as a member. It is killed when the test ends.
func start(t testing.TB, o orders) *process {
	t.Helper()
	text, err := json.Marshal(o) //nolint:musttag // both ends are this program
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersVariable+"="+string(text))
	p := &process{t: t, cmd: cmd, counts: map[outbox.NoticeKind]int{}, changed: make(chan struct{}), ended: make(chan struct{})}
	cmd.Stderr = &p.log
	// Held open until the end of the test: its end is the member's.
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a member: %v", err)
	}
	go p.listen(lines)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if p.log.raced.Load() {
			t.Errorf("member %d has a data race", cmd.Process.Pid)
		}
		if t.Failed() {
			t.Logf("member %d: %v; the end of its log:\n%s", cmd.Process.Pid, cmd.ProcessState, p.log.String())
		}
	})
	return p
}

func (p *process) listen(lines io.Reader) {
	defer close(p.ended)
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		var kind outbox.NoticeKind
		var n int
		if _, err := fmt.Sscan(scanner.Text(), &kind, &n); err != nil {
			continue // cut by SIGKILL
		}
		p.mu.Lock()
		p.counts[kind] += n
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
}

func (p *process) count(kind outbox.NoticeKind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[kind]
}

// await waits until the member has reported n of a kind, and reports false if it ended first.
func (p *process) await(kind outbox.NoticeKind, n int) bool {
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
			p.t.Errorf("member %d reported %q %d times of %d within %v", p.cmd.Process.Pid, kind, got, n, patience)
			return false
		}
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks the member to leave, which must end in a clean stop.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("member %d is gone: %v: %v", p.cmd.Process.Pid, err, p.cmd.ProcessState)
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("member %d left with %v, want a clean stop", p.cmd.Process.Pid, p.cmd.ProcessState)
		}
	case <-timer.C:
		p.t.Errorf("member %d did not leave within %v of SIGTERM", p.cmd.Process.Pid, patience)
		p.kill()
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
		p.t.Errorf("freeze: %v", err)
		return func() {}
	}
	answer, err := shell.StdoutPipe()
	if err != nil {
		p.t.Errorf("freeze: %v", err)
		return func() {}
	}
	if err := shell.Start(); err != nil {
		p.t.Errorf("freeze member %d: %v", p.cmd.Process.Pid, err)
		return func() {}
	}
	if line, err := bufio.NewReader(answer).ReadString('\n'); err != nil {
		p.t.Errorf("freeze member %d: %q, %v", p.cmd.Process.Pid, line, err)
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
