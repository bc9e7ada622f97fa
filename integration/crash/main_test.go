package crash

import (
	"os"
	"testing"

	"github.com/onceward/onceward/integration/stack"
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(ordersVariable); ok {
		os.Exit(beMember(text))
	}
	os.Exit(stack.Main(m))
}
