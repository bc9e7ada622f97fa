package stack_test

import (
	"testing"

	"github.com/onceward/onceward/integration/stack"
)

// The first test of `make test`: everything is installed here, and the output names what the tests will run on.
func TestServersTellTheirVersions(t *testing.T) {
	t.Parallel()
	database := stack.Postgres(t)
	stack.PgBouncer(t, database, nil)
	stack.Kafka(t)
	stack.KafkaLibs(t)
}

func TestPostgresTellsItsVersion(t *testing.T) {
	t.Parallel()
	var version string
	if err := connect(t, stack.Postgres(t)).QueryRow(t.Context(), "SELECT version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	t.Log(version)
}
