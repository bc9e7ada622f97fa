package outbox

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// fault is what a proxy does to a message from the client that it lies in wait for.
type fault string

const (
	// cutBefore: it does not reach the server.
	cutBefore fault = "cut before"
	// cutAfter: the server carries it out, and nobody hears of it.
	cutAfter fault = "cut after"
	// fallSilent: the same, and the connection stays open without a word.
	fallSilent fault = "silent"
)

// proxy stands between a relay and its database and cuts connections.
type proxy struct {
	listener net.Listener
	server   string
	routines sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[*route]bool
	ambush fault // "": none
	left   int   // messages that pass before it strikes
	struck int
}

// newProxy returns a proxy to the database and the database's URL through it.
func newProxy(t testing.TB, database string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal("the database's URL is not a URL")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, server: u.Host, open: map[*route]bool{}}
	p.routines.Go(p.serve)
	t.Cleanup(p.close)
	u.Host = listener.Addr().String()
	return p, u.String()
}

func (p *proxy) serve() {
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

func (p *proxy) add(r *route) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.open[r] = true
	}
	return !p.closed
}

// lie in wait for the message after the next n, unless another one is still to come.
func (p *proxy) lie(f fault, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ambush != "" {
		return false
	}
	p.ambush, p.left = f, n
	return true
}

// spring takes the ambush, if it is this message's turn.
func (p *proxy) spring() fault {
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

// strikes is how many messages met an ambush.
func (p *proxy) strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	for r := range p.open {
		r.cut()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.routines.Wait()
}

// route is one connection through the proxy.
type route struct {
	proxy          *proxy
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
		struck := r.proxy.spring()
		if struck == cutBefore {
			return
		}
		if struck == fallSilent {
			r.silent.Store(true)
		}
		if _, err := r.server.Write(b[:n]); err != nil {
			return
		}
		if struck == cutAfter {
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
