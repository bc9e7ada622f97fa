package stack

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go"
)

// postgresSettings hold for every server the stack starts. No test survives a power cut, so fsync buys nothing; a server
// killed with SIGKILL loses nothing without it. Prepared transactions are there because a forgotten one is a fault to test.
var postgresSettings = []string{
	"fsync=off",
	"max_connections=300",
	"max_prepared_transactions=16",
	"log_min_messages=warning",
}

// PostgresServer is a PostgreSQL server of one test's own. Kill, Stop and Start keep its port and its data.
type PostgresServer struct {
	controlled
	*postgres
}

// postgres is a server, whoever runs it.
type postgres struct {
	url  string  // superuser's URL of the maintenance database
	back backend // nil: somebody else's server
	what string  // "PostgreSQL 15.18 (native)"
}

// URL is the superuser's URL of the server's database "postgres".
func (p *postgres) URL() string { return p.url }

var sharedPostgres shared[*postgres]

// Postgres returns the URL of a fresh, empty database on the shared server, with the rights of a superuser. The database is
// dropped when the test ends, with the connections still open to it.
func Postgres(t testing.TB) string {
	t.Helper()
	server := sharedPostgres.get(t, func(ctx context.Context) (*postgres, error) {
		p, err := findPostgres(ctx)
		if err != nil {
			return nil, err
		}
		announcef("%s", p.what)
		return p, nil
	})
	return server.database(t)
}

// NewPostgres starts a server for this test alone. It stops when the test ends. Each setting is "name=value" and wins over
// the stack's own, as in "fsync=on" for a benchmark of commits.
func NewPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	p, err := startPostgres(context.Background(), settings...)
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	t.Cleanup(func() {
		if err := p.back.discard(context.Background()); err != nil {
			t.Errorf("stack: discard %s: %v", p.what, err)
		}
	})
	return &PostgresServer{
		controlled: controlled{t: t, name: p.what, back: p.back, probe: p.serves},
		postgres:   p,
	}
}

// Database returns the URL of a fresh, empty database on this server.
func (p *PostgresServer) Database() string {
	p.t.Helper()
	return p.database(p.t)
}

// database creates a database named after the test. From template0, since template1 can't be copied by two at once.
func (p *postgres) database(t testing.TB) string {
	t.Helper()
	name := uniqueName(t, 50)
	if err := p.exec("CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE template0"); err != nil {
		t.Fatalf("stack: create a database on %s: %v", p.what, err)
	}
	t.Cleanup(func() {
		// A server of the test's own may be down by now; its data goes away with it.
		if err := p.exec("DROP DATABASE IF EXISTS " + pgx.Identifier{name}.Sanitize() + " WITH (FORCE)"); err != nil {
			t.Logf("stack: drop database %s: %v", name, err)
		}
	})
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal("stack: the server's URL is not a URL") // the error would show a password
	}
	u.Path = "/" + name
	return u.String()
}

func (p *postgres) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// serves is nil once the server answers a query.
func (p *postgres) serves(ctx context.Context) error {
	_, err := p.version(ctx)
	return err
}

func (p *postgres) version(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	var version string
	err = conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
	version, _, _ = strings.Cut(version, " ") // "15.18 (Debian 15.18-0+deb12u1)"
	return version, errors.Join(err, conn.Close(ctx))
}

// findPostgres takes the server that the environment names, or starts the shared one.
func findPostgres(ctx context.Context) (*postgres, error) {
	if given := os.Getenv("ONCEWARD_TEST_POSTGRES"); given != "" {
		p := &postgres{url: given}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		version, err := p.version(ctx)
		if err != nil {
			return nil, fmt.Errorf("ONCEWARD_TEST_POSTGRES names a server that does not answer: %w", err)
		}
		p.what = "PostgreSQL " + version + " (ONCEWARD_TEST_POSTGRES)"
		return p, nil
	}
	p, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	held.atExit(p.back.discard)
	return p, nil
}

// startPostgres starts a new server and waits until it serves.
func startPostgres(ctx context.Context, settings ...string) (*postgres, error) {
	major, err := wantedPostgres()
	if err != nil {
		return nil, err
	}
	image := "postgres:" + cmp.Or(major, postgresImageMajor) + "-alpine"
	from, err := pick(ctx, "PostgreSQL", image)
	if err != nil {
		return nil, err
	}
	settings = slices.Concat(postgresSettings, settings) // of two settings of one name the last one wins
	var p *postgres
	switch from {
	case docker:
		p, err = dockerPostgres(image, settings)
	case native:
		p, err = nativePostgres(ctx, major, settings)
	}
	if err != nil {
		return nil, err
	}
	var version string
	if err = launch(ctx, p.what, p.back, p.serves); err == nil {
		version, err = p.version(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.back.discard(ctx))
	}
	p.what = strings.Replace(p.what, "PostgreSQL", "PostgreSQL "+version, 1)
	return p, nil
}

// dockerPostgres describes a container of the official image.
func dockerPostgres(image string, settings []string) (*postgres, error) {
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	command := []string{"postgres"}
	for _, s := range settings {
		command = append(command, "-c", s)
	}
	return &postgres{
		url:  "postgres://postgres@" + loopback(port) + "/postgres?sslmode=disable",
		what: "PostgreSQL (docker, " + image + ")",
		back: &container{
			image: image,
			ports: map[int]int{5432: port},
			options: []testcontainers.ContainerCustomizer{
				testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}),
				testcontainers.WithCmd(command...),
			},
		},
	}, nil
}

// uniqueName is the test's name in lower-case letters, digits and underscores, cut to max bytes, and a random end.
func uniqueName(t testing.TB, maxLen int) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '_'
		}
	}, t.Name())
	random := make([]byte, 5)
	_, _ = rand.Read(random) // never fails, says its documentation
	return name[:min(len(name), maxLen-11)] + "_" + hex.EncodeToString(random)
}
