package stack

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// nativePgBouncer writes the configuration of a new PgBouncer and makes the process that will run it.
func nativePgBouncer(ctx context.Context, port int, target *url.URL, settings map[string]string) (backend, string, error) {
	err := need{
		what:     "PgBouncer",
		packages: []string{"pgbouncer"},
		find:     onPath("pgbouncer"),
		instead:  "set ONCEWARD_TEST_PGBOUNCER to host:port of one, or start Docker",
	}.ensure(ctx)
	if err != nil {
		return nil, "", err
	}
	version, err := pgBouncerVersion(ctx)
	if err != nil {
		return nil, "", err
	}
	who, err := unprivileged()
	if err != nil {
		return nil, "", err
	}
	dir, err := held.folder("pgbouncer")
	if err != nil {
		return nil, "", err
	}
	if err := who.own(dir); err != nil {
		return nil, "", fmt.Errorf("give PgBouncer its folder: %w", err)
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	ini := pgBouncerConfig("127.0.0.1", port, target.Host, target.User, knowsPrepared(version), settings)
	if err := os.WriteFile(config, []byte(ini), 0o600); err != nil {
		return nil, "", fmt.Errorf("write PgBouncer's configuration: %w", err)
	}
	if err := who.own(config); err != nil {
		return nil, "", fmt.Errorf("give PgBouncer its configuration: %w", err)
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		return nil, "", fmt.Errorf("find PgBouncer: %w", err)
	}
	return &process{
		argv: []string{program, config}, dir: dir, account: who,
		logPath: filepath.Join(dir, "log"),
		stopBy:  syscall.SIGINT,
	}, "PgBouncer " + version + " (native)", nil
}

// pgBouncerVersion reads "1.18.0" from the first line of `pgbouncer --version`, "PgBouncer 1.18.0".
func pgBouncerVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "pgbouncer", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask PgBouncer for its version: %w", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	_, version, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok {
		return "", fmt.Errorf("PgBouncer's version %q is not \"PgBouncer X.Y.Z\"", line)
	}
	return version, nil
}

// knowsPrepared tells whether max_prepared_statements is a setting of this version (from 1.21 on); older ones refuse it.
func knowsPrepared(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 1 || minor >= 21
}
