package badinput

import (
	"os"
	"testing"

	"github.com/onceward/onceward/integration/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }
