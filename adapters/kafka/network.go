package kafka

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	// dialTimeout bounds one TCP connect. A black-holed address costs this.
	dialTimeout = 3 * time.Second
	// handshakeTimeout bounds a connect with TLS and SASL, over all addresses.
	handshakeTimeout = 10 * time.Second
	// requestTimeout bounds one request and its answer, and any read or write
	// that kafka-go forgot to bound.
	requestTimeout = 10 * time.Second
	// coordinatorTimeout bounds one request to the group's coordinator.
	coordinatorTimeout = 5 * time.Second
	// metadataAge is how old the transport's picture of the cluster may be:
	// how long a leader that has moved stays unnoticed.
	metadataAge = 2 * time.Second
)

// network owns every connection of one Consume, because kafka-go has no way to
// cut the ones it is waiting on: a close that waits without limit ends when its
// connection does.
type network struct {
	ctx    context.Context
	cancel context.CancelFunc
	limit  time.Duration // of a read or write that kafka-go has not bounded

	mu    sync.Mutex
	open  map[*conn]struct{}
	empty chan struct{} // closed when the network is closed and open is empty
}

func newNetwork() *network {
	n := &network{limit: requestTimeout, open: make(map[*conn]struct{}), empty: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()

	dialer := net.Dialer{Timeout: dialTimeout}
	raw, err := dialer.DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, network: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	n.open[c] = struct{}{}
	return c, nil
}

// cut refuses new connections and breaks those that are open: whatever waits
// on one fails now.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.cancel()
	for c := range n.open {
		_ = c.Conn.Close()
	}
	if len(n.open) == 0 {
		close(n.empty)
	}
}

func (n *network) remove(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.open[c]; !ok {
		return
	}
	delete(n.open, c)
	if n.ctx.Err() != nil && len(n.open) == 0 {
		close(n.empty)
	}
}

// close cuts everything and waits, at most for a second, until kafka-go's
// goroutines have let go of their connections.
func (n *network) close() {
	n.cut()
	waitAtMost(n.empty, time.Second)
}

// conn is a connection on which no read or write waits for ever. kafka-go sets
// deadlines for most of what it does, but none for SASL: a peer that went
// silent there would hang the transport for good.
type conn struct {
	net.Conn
	network        *network
	boundR, boundW atomic.Bool // kafka-go has set a deadline of its own
}

func (c *conn) Read(b []byte) (int, error) {
	if !c.boundR.Load() {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.network.limit))
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.boundW.Load() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.network.limit))
	}
	return c.Conn.Write(b)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.boundR.Store(!t.IsZero())
	c.boundW.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.boundR.Store(!t.IsZero())
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.boundW.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) Close() error {
	defer c.network.remove(c)
	return c.Conn.Close()
}

const clientID = "onceward"

// transport carries fetches, offsets and metadata.
func (n *network) transport(config ConsumerConfig) *kafka.Transport {
	return &kafka.Transport{
		Dial:           n.dial,
		DialTimeout:    handshakeTimeout,
		MetadataTTL:    metadataAge,
		MetadataTopics: config.Topics, // without it, all topics of the cluster, every second
		ClientID:       clientID,
		TLS:            config.TLS,
		SASL:           config.SASL,
	}
}

// dialer carries the group's membership.
func (n *network) dialer(config ConsumerConfig) *kafka.Dialer {
	return &kafka.Dialer{
		ClientID:      clientID,
		DialFunc:      n.dial,
		Timeout:       handshakeTimeout,
		TLS:           config.TLS,
		SASLMechanism: config.SASL,
	}
}

// waitAtMost waits for done, and reports whether it came within limit.
func waitAtMost(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
