package stack

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// nativePostgres makes a data folder and the process that will serve it.
func nativePostgres(ctx context.Context, major string, settings []string) (*postgres, error) {
	bin, err := postgresPrograms(ctx, major)
	if err != nil {
		return nil, err
	}
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := held.folder("postgres")
	if err != nil {
		return nil, err
	}
	if err := who.own(dir); err != nil {
		return nil, fmt.Errorf("give PostgreSQL its folder: %w", err)
	}
	data := filepath.Join(dir, "data")
	if err := who.run(ctx, dir, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, fmt.Errorf("make a database cluster: %w", err)
	}
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	argv := []string{
		filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
	}
	for _, s := range settings {
		argv = append(argv, "-c", s)
	}
	return &postgres{
		url:  "postgres://postgres@" + loopback(port) + "/postgres?sslmode=disable",
		what: "PostgreSQL (native)",
		back: &process{
			argv: argv, dir: dir, account: who,
			logPath: filepath.Join(dir, "log"),
			stopBy:  syscall.SIGINT, // "fast": ends sessions, writes a checkpoint
		},
	}, nil
}

// postgresPrograms returns the folder of initdb and postgres, installed if need be: those of the machine, or those of one
// major version.
func postgresPrograms(ctx context.Context, major string) (string, error) {
	if major != "" {
		return embeddedPostgres(ctx, major)
	}
	var bin string
	err := need{
		what:     "PostgreSQL's server",
		packages: []string{"postgresql"},
		instead:  "set ONCEWARD_TEST_POSTGRES to the URL of a server, or start Docker",
		find: func() (err error) {
			bin, err = findPostgresPrograms()
			return err
		},
	}.ensure(ctx)
	return bin, err
}

// findPostgresPrograms looks where Debian puts them (outside PATH, a folder for each major version), then in PATH.
func findPostgresPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", fmt.Errorf("look for initdb: %w", err)
	}
	newest, bin := 0, ""
	for _, f := range found {
		dir := filepath.Dir(f)
		if major, err := strconv.Atoi(filepath.Base(filepath.Dir(dir))); err == nil && major > newest {
			newest, bin = major, dir
		}
	}
	if bin != "" {
		return bin, nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("no initdb in /usr/lib/postgresql/*/bin nor in PATH")
	}
	return filepath.Dir(initdb), nil
}
