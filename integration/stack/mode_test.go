package stack

import (
	"errors"
	"strings"
	"testing"
)

func TestAnUnknownStackIsAnErrorThatNamesTheChoices(t *testing.T) {
	t.Setenv("ONCEWARD_TEST_STACK", "podman")
	_, err := pick(t.Context(), "PostgreSQL", "postgres:17-alpine")
	mustSay(t, err, "ONCEWARD_TEST_STACK", `"podman"`, "native", "docker")
}

func TestNativeAsksNoDockerEngine(t *testing.T) {
	t.Setenv("ONCEWARD_TEST_STACK", "native")
	if got, err := pick(t.Context(), "PostgreSQL", "no/such:image"); got != native || err != nil {
		t.Errorf("picked %q, %v", got, err)
	}
}

func TestDockerWithoutItsImageIsAnErrorThatNamesTheWayOut(t *testing.T) {
	t.Setenv("ONCEWARD_TEST_STACK", "docker")
	_, err := pick(t.Context(), "PostgreSQL", "localhost:1/no/such:image")
	mustSay(t, err, "ONCEWARD_TEST_STACK=native")
}

func TestAMissingServerYieldsTheCommandsThatBringIt(t *testing.T) {
	t.Parallel()
	err := need{
		what:     "PgBouncer",
		packages: []string{"pgbouncer", "libevent"},
		instead:  "set ONCEWARD_TEST_PGBOUNCER",
	}.instructions(errors.New("no program pgbouncer"))
	mustSay(t, err, "no program pgbouncer", "apt-get update && apt-get install -y pgbouncer libevent", "ONCEWARD_TEST_PGBOUNCER")
}

func TestAnUnknownVersionOfPostgresIsAnErrorThatNamesTheKnownOnes(t *testing.T) {
	t.Setenv("ONCEWARD_TEST_POSTGRES_VERSION", "9")
	_, err := wantedPostgres()
	mustSay(t, err, "ONCEWARD_TEST_POSTGRES_VERSION", "14, 15, 16, 17 or 18")
}

func TestAGivenServerIsUsed(t *testing.T) {
	database := Postgres(t)
	t.Setenv("ONCEWARD_TEST_POSTGRES", database)
	p, err := findPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.url != database || p.back != nil {
		t.Errorf("another server than the given one is used")
	}
	if fresh := p.database(t); fresh == database {
		t.Error("the given database itself was handed to a test")
	}
}

func TestAGivenServerThatDoesNotAnswerIsAnErrorThatNamesTheVariable(t *testing.T) {
	port, err := reservePort() // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ONCEWARD_TEST_POSTGRES", "postgres://somebody:secret@"+loopback(port)+"/postgres")
	_, err = findPostgres(t.Context())
	mustSay(t, err, "ONCEWARD_TEST_POSTGRES")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func mustSay(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}
