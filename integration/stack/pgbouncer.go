package stack

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
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
		announceOnce("PgBouncer at " + given + " (ONCEWARD_TEST_PGBOUNCER)")
		target.Host = given
		return target.String()
	}

	port, err := reservePort()
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	back, what, err := newPgBouncer(t.Context(), port, target, settings)
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
	t.Cleanup(func() {
		if err := back.discard(context.Background()); err != nil {
			t.Errorf("stack: discard %s: %v", what, err)
		}
	})
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	announceOnce(what)
	return target.String()
}

// newPgBouncer makes a PgBouncer where its server is: in Docker, if that can be, for a server in a container, else native.
func newPgBouncer(ctx context.Context, port int, target *url.URL, settings map[string]string) (backend, string, error) {
	server, inDocker, err := containerAddress(ctx, target.Host)
	if err != nil {
		return nil, "", err
	}
	from := native
	if inDocker {
		if from, err = pick(ctx, "PgBouncer", pgBouncerImage); err != nil {
			return nil, "", err
		}
	}
	if from == docker {
		return dockerPgBouncer(port, server, target.User, settings), "PgBouncer (docker, " + pgBouncerImage + ")", nil
	}
	return nativePgBouncer(ctx, port, target, settings)
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
