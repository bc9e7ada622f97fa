package crash

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a member and its database and cuts connections.
type proxy struct {
	listener net.Listener
	server   string
	routines sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[*route]bool
	ambush ambush
	struck int
}

// ambush is what a proxy does to the next commits it sees.
type ambush int

const (
	letPass ambush = iota
	// cutBefore: the commit does not reach the server, which rolls back.
	cutBefore
	// cutAfter: the server commits, and nobody hears of it.
	cutAfter
	// fallSilent: the server commits, and the connection stays open without a word.
	fallSilent
)

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
		server, err := net.Dial("tcp", p.server)
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

// lie in wait for the next commit.
func (p *proxy) lie(a ambush) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ambush = a
}

// spring takes the ambush for one commit.
func (p *proxy) spring() ambush {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.ambush
	if a != letPass {
		p.ambush = letPass
		p.struck++
	}
	return a
}

// strikes is how many commits met an ambush.
func (p *proxy) strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

// cut ends every connection that is open.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.open {
		r.cut()
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.cut()
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
		struck := letPass
		if isCommit(b[:n]) {
			struck = r.proxy.spring()
		}
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
