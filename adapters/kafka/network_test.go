package kafka

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

func silentPeer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// K7: a read that kafka-go forgot to bound ends all the same, also after a deadline of its own was lifted.
func TestK7ReadWithoutADeadlineEnds(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	n.limit = 50 * time.Millisecond
	t.Cleanup(n.close)
	c, err := n.dial(t.Context(), "tcp", silentPeer(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, prepare := range []func(){func() {}, func() {
		_ = c.SetDeadline(time.Now().Add(time.Hour))
		_ = c.SetDeadline(time.Time{})
	}} {
		prepare()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	}
}

// K7: cutting the network ends every wait on it, and nothing new is dialled.
func TestK7CutEndsEveryWait(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	addr := silentPeer(t)
	c, err := n.dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Hour))
	ended := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		c.Close()
		ended <- err
	}()
	n.cut()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read: %v", err)
	}
	if _, err := n.dial(t.Context(), "tcp", addr); err == nil {
		t.Error("a connection was made after the cut")
	}
	if !waitAtMost(n.empty, time.Second) {
		t.Error("the closed connection is still counted")
	}
}

func TestBackoffGrowsWithJitterAndIsBounded(t *testing.T) {
	t.Parallel()
	var b backoff
	for i := range 100 {
		low := min(firstBackoff<<min(i, 10), lastBackoff) / 2
		if d := b.next(); d < low || d > 2*low {
			t.Fatalf("failure %d: waits %v, want %v to %v", i+1, d, low, 2*low)
		}
	}
}
