// Package proxy stands between a program and its PostgreSQL, and cuts their connections at the worst moment.
package proxy

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Fault is what a proxy does to a message from the client that it lies in wait for.
type Fault string

const (
	// CutBefore: it does not reach the server, which rolls back.
	CutBefore Fault = "cut before"
	// CutAfter: the server carries it out, and nobody hears of it.
	CutAfter Fault = "cut after"
	// FallSilent: the same, and the connection stays open without a word.
	FallSilent Fault = "silent"
)

// Proxy passes on what is said in both directions until it is told otherwise.
type Proxy struct {
	listener net.Listener
	server   string
	meant    func(message []byte) bool
	routines sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[*route]bool
	ambush Fault // "": none
	left   int   // messages that pass before it strikes
	struck int
}

// New returns a proxy to the database and the database's URL through it. It lies in wait for messages of the client that are
// meant. It ends with the test.
func New(t testing.TB, database string, meant func(message []byte) bool) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal("the database's URL is not a URL")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, server: u.Host, meant: meant, open: map[*route]bool{}}
	p.routines.Go(p.serve)
	t.Cleanup(p.close)
	u.Host = listener.Addr().String()
	return p, u.String()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		r := &route{proxy: p, client: client, server: server}
		if !p.add(r) {
			r.cut()
			return
		}
		p.routines.Go(r.forth)
		p.routines.Go(r.back)
	}
}

func (p *Proxy) add(r *route) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.open[r] = true
	}
	return !p.closed
}

// Lie in wait for the message after the next n that are meant, and for no other any more.
func (p *Proxy) Lie(f Fault, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ambush, p.left = f, n
}

// Waiting reports whether the message it lies in wait for is still to come.
func (p *Proxy) Waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ambush != ""
}

// spring takes the ambush, if it is this message's turn.
func (p *Proxy) spring() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ambush == "" {
		return ""
	}
	if p.left > 0 {
		p.left--
		return ""
	}
	f := p.ambush
	p.ambush = ""
	p.struck++
	return f
}

// Strikes is how many messages met an ambush.
func (p *Proxy) Strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

// Cut ends every connection that is open.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.open {
		r.cut()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.routines.Wait()
}

// route is one connection through the proxy.
type route struct {
	proxy          *Proxy
	client, server net.Conn
	silent         atomic.Bool
}

func (r *route) cut() {
	_ = r.client.Close()
	_ = r.server.Close()
}

// forth carries what the client says.
func (r *route) forth() {
	defer r.cut()
	b := make([]byte, 64<<10)
	for {
		n, err := r.client.Read(b)
		if err != nil {
			return
		}
		var struck Fault
		if r.proxy.meant(b[:n]) {
			struck = r.proxy.spring()
		}
		if struck == CutBefore {
			return
		}
		if struck == FallSilent {
			r.silent.Store(true)
		}
		if _, err := r.server.Write(b[:n]); err != nil {
			return
		}
		if struck == CutAfter {
			// The client is cut first: the answer is on its way already. What the server was sent it will carry out.
			_ = r.client.Close()
			return
		}
	}
}

// back carries what the server says.
func (r *route) back() {
	defer func() {
		r.cut()
		r.proxy.mu.Lock()
		defer r.proxy.mu.Unlock()
		delete(r.proxy.open, r)
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := r.server.Read(b)
		if err != nil {
			return
		}
		if r.silent.Load() {
			continue
		}
		if _, err := r.client.Write(b[:n]); err != nil {
			return
		}
	}
}
