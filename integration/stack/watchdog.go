package stack

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// watchdogScript reads "+pid" and "-pid" lines. Its input ends when the test binary ends, however that happened; what
// is left on the list then is killed, each with its process group, and the folder ($1) is removed. A server may still write
// while its folder goes, hence the second try.
const watchdogScript = `
pids=" "
while read -r line; do
	case $line in
	+*) pids="$pids${line#+} " ;;
	-*) pids="${pids%% ${line#-} *} ${pids#* ${line#-} }" ;;
	esac
done
for p in $pids; do kill -KILL -- "-$p"; done
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
`

// watchdog ends native servers that outlive this process.
type watchdog struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	pipe io.WriteCloser
}

func startWatchdog(dir string) (*watchdog, error) {
	cmd := exec.Command("sh", "-c", watchdogScript, "watchdog", dir) //nolint:noctx // it must outlive every context
	// A session of its own: an interrupt from the terminal reaches the test binary, not its watchdog.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make the watchdog's pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the watchdog of the test servers: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: pipe}, nil
}

func (w *watchdog) watch(pid int) error  { return w.tell("+%d\n", pid) }
func (w *watchdog) forget(pid int) error { return w.tell("-%d\n", pid) }

func (w *watchdog) tell(format string, pid int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := fmt.Fprintf(w.pipe, format, pid); err != nil {
		return fmt.Errorf("tell the watchdog about process %d: %w", pid, err)
	}
	return nil
}

// dismiss closes the pipe and waits until the watchdog has removed the folder.
func (w *watchdog) dismiss() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.pipe.Close(); err != nil {
		return fmt.Errorf("close the watchdog's pipe: %w", err)
	}
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("end the watchdog: %w", err)
	}
	return nil
}
