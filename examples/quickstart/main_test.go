package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"testing"
)

// TestMain lets the test binary be the consumer process, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv(consumerEnv) != "" {
		os.Exit(consumerProcess())
	}
	os.Exit(m.Run())
}

func TestEveryOrderTakesEffectOnceAcrossKills(t *testing.T) {
	t.Parallel()
	var story bytes.Buffer
	result, err := exercise(t.Context(), "", "", log.New(&story, "", 0))
	if err != nil {
		t.Fatalf("%v\n%s", err, story.String())
	}
	t.Log("\n" + story.String())
	if result.kills != len(kills) {
		t.Errorf("%d consumers were killed, want %d", result.kills, len(kills))
	}
	if result.sent != 2*orderCount {
		t.Errorf("%d messages were sent, want %d", result.sent, 2*orderCount)
	}
	// What a consumer held when it was killed must have come again.
	if result.seen.Delivered <= result.sent {
		t.Errorf("%d messages were delivered and %d sent: the kills caused no redelivery", result.seen.Delivered, result.sent)
	}
	// Each order was sent twice, so one copy is a duplicate, whatever else happened.
	if result.seen.Duplicates < orderCount {
		t.Errorf("%d duplicates were recognised, want at least %d", result.seen.Duplicates, orderCount)
	}
	if result.cutOff() < len(kills) {
		t.Errorf("%d deliveries were cut off, want at least one for each of %d kills", result.cutOff(), len(kills))
	}
	if result.lost() != 0 || result.doubled() != 0 || result.entries() != orderCount {
		t.Errorf("lost %d, doubled %d, effects %d; want 0, 0, %d", result.lost(), result.doubled(), result.entries(), orderCount)
	}
}

func TestHelpSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	var help bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, io.Discard, &help); status != 0 {
		t.Errorf("-h ends with status %d, want 0", status)
	}
	for _, want := range []string{"go run ./examples/quickstart", "-kafka HOST:PORT", "-postgres URL", "Exit status"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("-h does not mention %q:\n%s", want, help.String())
		}
	}
}

func TestBadInputNamesTheFlagAndNeverThePassword(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	closed := closedAddress(t)
	silent := silentAddress(t)
	tests := map[string]struct {
		args   []string
		status int
		wants  []string
	}{
		"unknown flag":           {[]string{"-rabbit", "x"}, 2, []string{"-rabbit"}},
		"argument":               {[]string{"now"}, 2, []string{`"now"`, "only flags"}},
		"kafka without port":     {[]string{"-kafka", "localhost"}, 1, []string{"-kafka", "HOST:PORT"}},
		"kafka not listening":    {[]string{"-kafka", closed}, 1, []string{"-kafka " + closed, "does not answer"}},
		"kafka of another kind":  {[]string{"-kafka", silent}, 1, []string{"-kafka " + silent, "does not speak Kafka"}},
		"postgres not a URL":     {[]string{"-postgres", "user:" + secret + "@localhost/db"}, 1, []string{"-postgres", "postgres://USER:PASSWORD@"}},
		"postgres other scheme":  {[]string{"-postgres", "mysql://user:" + secret + "@localhost/db"}, 1, []string{"-postgres", "another kind"}},
		"postgres odd scheme":    {[]string{"-postgres", "user:" + secret + "@localhost://db"}, 1, []string{"-postgres", "another kind"}},
		"postgres bad port":      {[]string{"-postgres", "postgres://user:" + secret + "@localhost:port/db"}, 1, []string{"-postgres"}},
		"postgres bad escape":    {[]string{"-postgres", "postgres://user:" + secret + "%zz@localhost/db"}, 1, []string{"-postgres"}},
		"postgres bad option":    {[]string{"-postgres", "postgres://user:" + secret + "@localhost/db?sslmode=perhaps"}, 1, []string{"-postgres", "sslmode"}},
		"postgres not listening": {[]string{"-postgres", "postgres://user:" + secret + "@" + closed + "/db"}, 1, []string{"-postgres can't be used", closed}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var output bytes.Buffer
			if status := run(t.Context(), test.args, &output, &output); status != test.status {
				t.Errorf("status %d, want %d", status, test.status)
			}
			for _, want := range test.wants {
				if !strings.Contains(output.String(), want) {
					t.Errorf("the error does not mention %q:\n%s", want, output.String())
				}
			}
			if strings.Contains(output.String(), secret) {
				t.Errorf("the error shows the password:\n%s", output.String())
			}
		})
	}
}

func TestInterruptedRunFailsAndCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	var errors bytes.Buffer
	// Interrupted as soon as the first consumer was killed.
	out := writerFunc(func(line []byte) {
		if bytes.Contains(line, []byte("killed")) {
			cancel()
		}
	})
	if status := run(ctx, nil, out, &errors); status != 1 {
		t.Errorf("status %d, want 1\n%s", status, errors.String())
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary folder: %v, %v", left, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// closedAddress returns a loopback address where nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// silentAddress returns an address that hangs up on everybody.
func silentAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}
