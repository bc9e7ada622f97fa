package stack

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PgBouncer starts a PgBouncer in transaction mode for this test alone, in front of the server of databaseURL, and returns
// the URL of the same database through it. It stops when the test ends.
//
// settings are added to its [pgbouncer] section and win over the stack's own. Prepared statements, which PgBouncer knows
// since 1.21, are off unless settings turn them on (max_prepared_statements): a program that works without them works
// with every version.
//
// With ONCEWARD_TEST_PGBOUNCER (host:port) that one is used, as it is configured; it must stand before the server of
// ONCEWARD_TEST_POSTGRES and pass on any database name.
func PgBouncer(t testing.TB, databaseURL string, settings map[string]string) string {
	t.Helper()
	target, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal("stack: the database's URL is not a URL") // the error would show a password
	}
	if given := os.Getenv("ONCEWARD_TEST_PGBOUNCER"); given != "" {
		if len(settings) > 0 {
			t.Logf("stack: ONCEWARD_TEST_PGBOUNCER is expected to have these settings: %v", settings)
		}
		announcePgBouncer("PgBouncer at " + given + " (ONCEWARD_TEST_PGBOUNCER)")
		target.Host = given
		return target.String()
	}

	port, err := reservePort()
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	back, what, err := nativePgBouncer(t.Context(), port, target, settings)
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	target.Host = loopback(port)
	err = launch(t.Context(), what, back, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, target.String())
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		return conn.Close(ctx)
	})
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	t.Cleanup(func() {
		if err := back.kill(context.Background()); err != nil {
			t.Errorf("stack: end %s: %v", what, err)
		}
	})
	announcePgBouncer(what)
	return target.String()
}

var pgBouncersAnnounced sync.Map

func announcePgBouncer(what string) {
	if _, known := pgBouncersAnnounced.LoadOrStore(what, true); !known {
		announce("%s", what)
	}
}

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

// pgBouncerConfig passes every database name on to one server, as one user. Clients are not asked for passwords.
func pgBouncerConfig(bind string, port int, server string, user *url.Userinfo, knowsPrepared bool, settings map[string]string) string {
	all := map[string]string{
		"listen_addr":       bind,
		"listen_port":       strconv.Itoa(port),
		"unix_socket_dir":   "",
		"auth_type":         "any",
		"pool_mode":         "transaction",
		"max_client_conn":   "500",
		"default_pool_size": "20",
	}
	if knowsPrepared {
		all["max_prepared_statements"] = "0"
	}
	maps.Copy(all, settings)

	host, serverPort, err := net.SplitHostPort(server)
	if err != nil { // a URL without a port
		host, serverPort = server, "5432"
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	var b strings.Builder
	fmt.Fprintf(&b, "[databases]\n* = host=%s port=%s user=%s", host, serverPort, quote(user.Username()))
	if password, ok := user.Password(); ok {
		fmt.Fprintf(&b, " password=%s", quote(password))
	}
	b.WriteString("\n[pgbouncer]\n")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = %s\n", key, all[key])
	}
	return b.String()
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
