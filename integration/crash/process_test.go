package crash

import (
	"strings"
	"testing"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/integration/child"
)

// process is a member as its parent sees it.
type process = child.Process[inbox.EventKind]

// start makes a member, which reports a kind and an id in each line.
func start(t testing.TB, name string, o orders) *process {
	t.Helper()
	return child.Start(t, name, ordersVariable, o, func(line string) (inbox.EventKind, int, bool) {
		kind, _, whole := strings.Cut(line, " ")
		return inbox.EventKind(kind), 1, whole
	})
}
