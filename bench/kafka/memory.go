package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// peakMemory runs a command of ours in a process of its own and returns the most
// memory it ever had in RAM, in MB, as that process read it at its end.
//
// The child is this program, with PostgreSQL's and Docker's clients linked in:
// a consumer's own binary is smaller.
func peakMemory(ctx context.Context, child ...string) (megabytes float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	command := exec.CommandContext(ctx, self, child...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return 0, fmt.Errorf("the consumer whose memory is measured: %w", err)
	}
	kilobytes, err := strconv.ParseFloat(string(bytes.TrimSpace(out)), 64)
	if err != nil {
		return 0, fmt.Errorf("read the peak memory of the consumer: %w", err)
	}
	return kilobytes / 1000, nil
}

// printPeakMemory prints the peak of this process in kB (1,000 bytes).
func printPeakMemory() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("read this process's peak memory: %w", err)
	}
	_, rest, found := bytes.Cut(status, []byte("VmHWM:"))
	fields := bytes.Fields(rest)
	if !found || len(fields) == 0 {
		return errors.New("read this process's peak memory: /proc/self/status has no VmHWM")
	}
	kibibytes, err := strconv.Atoi(string(fields[0]))
	if err != nil {
		return fmt.Errorf("read this process's peak memory: %w", err)
	}
	_, err = fmt.Println(kibibytes * 1024 / 1000)
	return err
}
