// Package wire counts what a PostgreSQL client says on its connection: the
// statements it executes and the round trips it waits for. It counts bytes that
// pass, so a pipeline inside a library shows as it is.
package wire

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Meter adds up over all connections dialled through it. The connections must
// not be encrypted.
type Meter struct {
	statements, trips, written, read atomic.Int64
}

// Count is what a Meter saw.
type Count struct {
	// Statements are simple queries and executions of prepared ones.
	Statements int64
	// RoundTrips counts how often the client waited for an answer to what it had sent.
	RoundTrips int64
	// Written and Read are bytes.
	Written, Read int64
}

// Count returns the numbers so far.
func (m *Meter) Count() Count {
	return Count{Statements: m.statements.Load(), RoundTrips: m.trips.Load(), Written: m.written.Load(), Read: m.read.Load()}
}

// Minus returns what was added since an earlier count.
func (c Count) Minus(earlier Count) Count {
	return Count{
		Statements: c.Statements - earlier.Statements,
		RoundTrips: c.RoundTrips - earlier.RoundTrips,
		Written:    c.Written - earlier.Written,
		Read:       c.Read - earlier.Read,
	}
}

// Dial returns a dial function whose connections are counted.
func (m *Meter) Dial(next pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, meter: m, startup: true}, nil
	}
}

// countedConn has one reader and one writer at a time, as pgconn uses it.
type countedConn struct {
	net.Conn

	meter *Meter

	// waiting: something was written and not yet answered.
	waiting atomic.Bool

	// startup: the next message is the startup message, which has no type byte.
	startup bool
	// header collects the type and length of the message that has begun.
	header []byte
	// skip is how much of the message's body is still to come.
	skip int
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.written.Add(int64(n))
	c.scan(p[:n])
	if n > 0 {
		c.waiting.Store(true)
	}
	return n, err
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.read.Add(int64(n))
	if n > 0 && c.waiting.Swap(false) {
		c.meter.trips.Add(1)
	}
	return n, err
}

// scan follows the client's messages: a type byte, then a length that counts
// itself, then the body.
func (c *countedConn) scan(p []byte) {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			c.skip -= n
			p = p[n:]
			continue
		}
		size := 5
		if c.startup {
			size = 4
		}
		n := min(size-len(c.header), len(p))
		c.header = append(c.header, p[:n]...)
		p = p[n:]
		if len(c.header) < size {
			return
		}
		if !c.startup && (c.header[0] == 'Q' || c.header[0] == 'E') {
			c.meter.statements.Add(1)
		}
		c.skip = int(binary.BigEndian.Uint32(c.header[size-4:])) - 4
		c.header = c.header[:0]
		c.startup = false
	}
}
