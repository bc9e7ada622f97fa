package outbox

import (
	"fmt"
	"testing"

	"github.com/onceward/onceward/integration/child"
	"github.com/onceward/onceward/outbox"
)

// process is a member as its parent sees it.
type process = child.Process[outbox.NoticeKind]

// start makes a member, which reports a kind and a count in each line.
func start(t testing.TB, o orders) *process {
	t.Helper()
	return child.Start(t, o.Relay, ordersVariable, o, func(line string) (kind outbox.NoticeKind, n int, whole bool) {
		_, err := fmt.Sscan(line, &kind, &n)
		return kind, n, err == nil
	})
}
