package stack_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/integration/stack"
)

const childVariable = "ONCEWARD_STACK_TEST_CHILD"

// The test runs its own binary a second time; that child starts a server, says where, and waits for its SIGKILL.
func TestServersEndWithABinaryThatWasKilled(t *testing.T) {
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		fmt.Println("serving " + stack.NewPostgres(t).URL())
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent, should that one die first
		return
	}

	// Not t.TempDir: PostgreSQL's account cannot pass through that one.
	folder, err := os.MkdirTemp("", "onceward-watchdog-test-*") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), childVariable+"=1", "TMPDIR="+folder, "ONCEWARD_TEST_STACK=native")
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var url string
	for lines := bufio.NewScanner(output); url == "" && lines.Scan(); {
		_, url, _ = strings.Cut(lines.Text(), "serving ")
	}
	connect(t, url)

	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // "signal: killed"
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, connectErr := pgx.Connect(t.Context(), url)
		left, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		if connectErr != nil && len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("10 s after its binary was killed the server still answers (%t) or left files: %v", connectErr == nil, left)
		}
	}
}
