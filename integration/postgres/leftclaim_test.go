package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/store/postgres"
)

// TestClaimLeftAsItWasSentIsCancelled: pgx asks the server to cancel a statement
// whose connection it closes, once and at once. A claim that gets there after that
// request would wait for another's without bound, with nobody to answer to.
func TestClaimLeftAsItWasSentIsCancelled(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	holder, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	const hold = `INSERT INTO onceward.record (scope, key, expires_at) VALUES ($1, 'a', now() + interval '1 day')`
	if _, err := holder.Exec(t.Context(), hold, scope); err != nil {
		t.Fatal(err)
	}

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	way := &slowWay{leave: leave, cancelled: make(chan struct{}), arrived: make(chan struct{})}
	store := postgres.New(newPool(t, withSetting(url, "default_query_exec_mode=exec"), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = way.dial
		c.ConnConfig.RuntimeParams["application_name"] = "left"
	}))
	wantIs(t, store.Atomic(ctx, claimsOf("a"), effectOf("a")), context.Canceled)
	within(t, "the claim at the server", way.arrived)
	eventually(t, "the end of its connection", func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'left'`) == 0
	})
}

// slowWay is a network on which a request to cancel the claim overtakes it, though
// it is made when the claim has been sent and given up.
type slowWay struct {
	leave              context.CancelFunc
	once               sync.Once
	cancelled, arrived chan struct{}
}

func (w *slowWay) dial(ctx context.Context, network, address string) (net.Conn, error) {
	server, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: server, way: w, closed: make(chan struct{})}, nil
}

type slowConn struct {
	net.Conn

	way                *slowWay
	isRequest, isOnWay bool // it carries a request to cancel, or the claim
	once               sync.Once
	closed             chan struct{}
}

const cancelRequestCode = 80877102

func (c *slowConn) Write(p []byte) (int, error) {
	switch {
	case len(p) == 16 && binary.BigEndian.Uint32(p[4:]) == cancelRequestCode:
		c.isRequest = true
	case bytes.Contains(p, []byte(`INSERT INTO "onceward".record`)):
		c.isOnWay = true
		claim := bytes.Clone(p)
		go func() {
			defer close(c.way.arrived)
			<-c.way.cancelled
			_, _ = c.Conn.Write(claim)
			_ = c.Conn.Close()
		}()
		c.way.leave()
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// Close leaves it to the claim to close the socket behind it.
func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	switch {
	case c.isRequest: // The server has closed it, having dealt with the request.
		c.way.once.Do(func() { close(c.way.cancelled) })
	case c.isOnWay:
		return c.SetReadDeadline(time.Now())
	}
	return c.Conn.Close()
}
