package servers

import (
	"fmt"
	"os"
	"runtime/pprof"
)

// Profile writes a CPU profile of the program to a file until the program ends.
// An empty name: no profile.
func (p *Program) Profile(file string) error {
	if file == "" {
		return nil
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write the CPU profile: %w", err)
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return fmt.Errorf("start the CPU profile: %w", err)
	}
	p.Cleanup(func() {
		pprof.StopCPUProfile()
		if err := out.Close(); err != nil {
			p.Errorf("write the CPU profile: %v", err)
		}
	})
	return nil
}
