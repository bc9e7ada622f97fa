package crash

import (
	"bytes"
	"context"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// death is where a member kills itself, counted from the moment it joined the group. At most one of the counts is set.
type death struct {
	// Write is the n-th write to PostgreSQL, whatever it carries: between any two statements.
	Write int
	// Commit is the n-th write that commits.
	Commit int
	// Before: the write does not happen any more. Else it was handed to the kernel, and the server carries it out.
	Before bool
	// Processed is the n-th message committed and not yet known to the adapter.
	Processed int
}

// die ends the process as kill -9 does: nothing deferred runs, nothing is flushed.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// dialer makes the connections to PostgreSQL, each write of which can be the last.
func (m *member) dialer() pgconn.DialFunc {
	var plain net.Dialer
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := plain.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &mortalConn{Conn: conn, member: m}, nil
	}
}

type mortalConn struct {
	net.Conn

	member *member
}

func (c *mortalConn) Write(b []byte) (int, error) {
	last := c.member.lastWrite(b)
	if last && c.member.Death.Before {
		die()
	}
	n, err := c.Conn.Write(b)
	if last {
		die()
	}
	return n, err
}

func (m *member) lastWrite(b []byte) bool {
	if !m.joined.Load() {
		return false
	}
	if m.writes.Add(1) == int64(m.Death.Write) {
		return true
	}
	return isCommit(b) && m.commits.Add(1) == int64(m.Death.Commit)
}

// isCommit finds the statement in what a client writes; no message of a trial holds the word.
func isCommit(b []byte) bool { return bytes.Contains(bytes.ToLower(b), []byte("commit")) }

// cutBroker shuts every socket down that leads to the broker. The adapter's configuration has no way to
// put a proxy in between: brokers name their own address.
func (m *member) cutBroker() {
	_, text, err := net.SplitHostPort(m.Broker)
	if err != nil {
		return
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return
	}
	for fd := range 1024 {
		peer, err := syscall.Getpeername(fd)
		if err != nil {
			continue
		}
		if to, ok := peer.(*syscall.SockaddrInet4); ok && to.Port == port {
			_ = syscall.Shutdown(fd, syscall.SHUT_RDWR)
		}
	}
}
