package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// process is a native server: a program of this machine under an account that the program accepts.
type process struct {
	argv    []string
	dir     string   // working folder, the server's own
	account *account // nil: this process's own
	logPath string   // stdout and stderr; never inherited, since a pipe of go test held open would hang it
	stopBy  syscall.Signal

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd ended
}

// start launches the program and returns; await tells when it serves.
func (p *process) start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return errors.New("already running")
	}
	guard, err := held.guard()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close() // the child has its own copy

	cmd := exec.Command(p.argv[0], p.argv[1:]...) //nolint:noctx // the server outlives the call that starts it
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.account.credential()}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	if err := guard.watch(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in its log; that it ended is what counts
		_ = guard.forget(cmd.Process.Pid)
	}()
	return nil
}

// running is true between start and the program's end; p.mu is held.
func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *process) alive(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return errors.New("the server's process ended")
	}
	return nil
}

// stop asks the program to end and waits for it, at most until ctx ends; then it is killed and that is an error.
func (p *process) stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(p.stopBy); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ask the server to stop: %w", err)
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("the server did not stop on %v: %w", p.stopBy, ctx.Err()), p.killAll(context.WithoutCancel(ctx)))
	}
}

// kill ends the program and its children with SIGKILL and returns when all of them are gone.
func (p *process) kill(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	return p.killAll(ctx)
}

// killAll freezes the program first: it can then neither fork another child nor notice that one died. p.mu is held.
func (p *process) killAll(ctx context.Context) error {
	pid := p.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	children, err := childrenOf(pid)
	if err != nil {
		return err
	}
	for _, c := range append(children, pid) {
		if err := syscall.Kill(c, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d: %w", c, err)
		}
	}
	<-p.exited
	return poll(ctx, func(context.Context) error {
		for _, c := range children {
			if parent, state, err := processStat(c); err == nil && state != 'Z' && parent != 0 {
				return fmt.Errorf("process %d is still there after SIGKILL", c)
			}
		}
		return nil
	})
}

// discard ends the program, if it runs, and removes its folder.
func (p *process) discard(ctx context.Context) error {
	return errors.Join(p.kill(ctx), os.RemoveAll(p.dir))
}

func (p *process) tail(context.Context) string {
	f, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailLength {
		if _, err := f.Seek(-tailLength, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	buf := make([]byte, tailLength)
	n, _ := f.Read(buf) // an empty log reads as io.EOF
	return string(buf[:n])
}

// childrenOf lists the direct children of a process.
func childrenOf(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, _, err := processStat(child); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children, nil
}

// processStat reads the parent and the state letter of a process. The name in parentheses before them may itself hold
// parentheses and spaces, so parsing begins after the last one.
func processStat(pid int) (parent int, state byte, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	after := bytes.LastIndexByte(stat, ')') + 1
	_, err = fmt.Sscanf(string(stat[after:]), " %c %d", &state, &parent)
	return parent, state, err
}

// account is an unprivileged user of this machine.
type account struct{ uid, gid uint32 }

// unprivileged returns the account for a server that refuses to run as root, or nil if this process isn't root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is the account of this process
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("ids of the user %s: %w", name, err)
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL and PgBouncer refuse to run as root, and there is no user postgres or nobody: " +
		"run the tests as another user, or `useradd --system postgres`")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own gives a path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// run executes a program to its end as the account; its output is part of the error.
func (a *account) run(ctx context.Context, dir string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", argv[0], err, out)
	}
	return nil
}

// poll calls probe until it returns nil, with a pause of 20 ms, or until ctx ends; then the last error is returned.
func poll(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
