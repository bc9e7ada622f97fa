package kafka_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/integration/stack"
)

// javaProgram compiles testdata/<name>.java against the broker's own client and returns the command that runs it.
func javaProgram(ctx context.Context, t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	classes, libs := t.TempDir(), filepath.Join(stack.KafkaLibs(t), "*")
	if out, err := exec.CommandContext(ctx, "javac", "-cp", libs, "-d", classes, "testdata/"+name+".java").CombinedOutput(); err != nil {
		t.Fatalf("javac %s: %v\n%s\nA JDK is needed: apt-get install -y openjdk-17-jdk-headless", name, err, out)
	}
	path := libs + string(os.PathListSeparator) + classes
	return exec.CommandContext(ctx, "java", append([]string{"-XX:TieredStopAtLevel=1", "-cp", path, name}, args...)...)
}

// runJava runs a program to its end and returns the lines it printed.
func runJava(t *testing.T, name string, args ...string) []string {
	t.Helper()
	cmd := javaProgram(t.Context(), t, name, args...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// javaProcess is a program that goes on until the test ends.
type javaProcess struct {
	mu    sync.Mutex
	lines []string
}

func startJava(t *testing.T, name string, args ...string) *javaProcess {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := javaProgram(ctx, t, name, args...)
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatalf("%s: %v", name, err)
	}
	p := &javaProcess{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(pipe); scanner.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = cmd.Wait()
	})
	return p
}

// printed returns the lines so far that begin with prefix.
func (p *javaProcess) printed(prefix string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, line := range p.lines {
		if len(line) >= len(prefix) && line[:len(prefix)] == prefix {
			out = append(out, line)
		}
	}
	return out
}
