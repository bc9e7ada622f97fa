package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken below 32768, where Linux's range for outgoing connections begins: a client's connection can never
// sit on the port of a server that is down for a moment.
const (
	firstPort = 15000
	lastPort  = 32000
)

// reservePort returns a loopback port that nobody listens on and that no other test binary was given. The reservation
// is an abstract Unix socket, which the kernel drops when this process ends; it is kept as long as the process lives
// since a stopped server comes back to its port.
func reservePort() (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		mark, err := net.Listen("unix", "@onceward-test-port-"+strconv.Itoa(port)) //nolint:noctx // answers at once
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", loopback(port)) //nolint:noctx // answers at once
		if err != nil {
			_ = mark.Close()
			continue
		}
		if err := probe.Close(); err != nil {
			return 0, fmt.Errorf("free port %d again: %w", port, err)
		}
		reserved.Store(port, mark)
		return port, nil
	}
	return 0, errors.New("no free loopback port in 1000 tries between 15000 and 32000")
}

// reserved keeps each reservation's socket (port to net.Listener) from the garbage collector, which would close it.
var reserved sync.Map

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
