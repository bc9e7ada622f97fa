package servers

import (
	"os"

	"github.com/onceward/onceward/integration/stack"
)

// Kafka returns the address of a broker of the program's own, or of the one
// ONCEWARD_TEST_KAFKA names.
//
// For tests the stack starts Java with its first compiler only, which is quick to
// start and slow to serve. _JAVA_OPTIONS is read after the command line and turns
// the second one on again.
func (p *Program) Kafka() (addr string, err error) {
	if os.Getenv("ONCEWARD_TEST_KAFKA") != "" {
		return stack.Kafka(p).Addr, nil
	}
	if err := os.Setenv("_JAVA_OPTIONS", "-XX:TieredStopAtLevel=4"); err != nil {
		return "", err
	}
	return stack.NewKafka(p).Addr(), nil
}
