package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/store/postgres"
)

// wire is a TCP proxy in front of a server that fails in one way, once, when
// the client sends COMMIT.
type wire struct {
	net.Listener

	mu   sync.Mutex
	how  fault
	next net.Addr
}

type fault int

const (
	// healthy passes everything on.
	healthy fault = iota
	// cutAfter passes COMMIT on, waits until the server has answered it, and
	// cuts the connection in place of the answer.
	cutAfter
	// cutBefore cuts the connection in place of COMMIT.
	cutBefore
	// silent passes COMMIT on and nothing back.
	silent
)

func newWire(t *testing.T, config *pgconn.Config) *wire {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, next: server}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.carry(client) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return w
}

func (w *wire) port() uint16 { return netip.MustParseAddrPort(w.Addr().String()).Port() }

func (w *wire) arm(how fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.how = how
}

// spend returns the armed fault, which happens once.
func (w *wire) spend() fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	how := w.how
	w.how = healthy
	return how
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", w.next.String())
	if err != nil {
		return
	}
	defer server.Close()
	happened := make(chan fault, 1)
	var back sync.WaitGroup
	back.Go(func() {
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			select {
			case how := <-happened:
				if how == silent {
					_, _ = io.Copy(io.Discard, server)
				}
				return
			default:
			}
			if _, writeErr := client.Write(buffer[:n]); err != nil || writeErr != nil {
				return
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if bytes.Contains(buffer[:n], []byte("commit\x00")) {
			switch how := w.spend(); how {
			case cutBefore:
				err = io.EOF
				n = 0
			case cutAfter, silent:
				happened <- how
			case healthy:
			}
		}
		if _, writeErr := server.Write(buffer[:n]); err != nil || writeErr != nil {
			break
		}
	}
	_ = server.Close()
	back.Wait()
}

// TestCommitLostInTheNetworkIsUnknownAndTheNextClaimTells, over both drivers.
func TestCommitLostInTheNetworkIsUnknownAndTheNextClaimTells(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		how  fault
		next idempotency.Verdict
	}{
		"answer lost":  {cutAfter, idempotency.Duplicate},
		"request lost": {cutBefore, idempotency.Fresh},
		"silence":      {silent, idempotency.Duplicate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, admin := newDatabase(t)
			w := newWire(t, &admin.Config().ConnConfig.Config)
			pool := newPool(t, url, one, func(c *pgxpool.Config) {
				c.ConnConfig.Host, c.ConnConfig.Port = "127.0.0.1", w.port()
			})
			store := postgres.New(pool, postgres.WithCommitDeadline(time.Second))
			verdictOf(t, store, "warm up")
			w.arm(c.how)
			wantIs(t, store.Atomic(t.Context(), claimsOf("a"), effectOf("a")), idempotency.ErrCommitUnknown)
			if got := verdictOf(t, store, "a"); got != c.next || effects(t, admin, "a") != 1 {
				t.Errorf("the next claim is %v, want %v; %d effects", got, c.next, effects(t, admin, "a"))
			}

			config := pool.Config().ConnConfig
			db := stdlib.OpenDB(*config)
			defer db.Close()
			db.SetMaxOpenConns(1)
			sqlStore := postgres.NewSQL(db, postgres.WithCommitDeadline(time.Second))
			add := func(ctx context.Context, tx *sql.Tx, verdicts []idempotency.Verdict) error {
				if verdicts[0] != idempotency.Fresh {
					return nil
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ('b')`)
				return err
			}
			w.arm(c.how)
			wantIs(t, sqlStore.Atomic(t.Context(), claimsOf("b"), add), idempotency.ErrCommitUnknown)
			if err := sqlStore.Atomic(t.Context(), claimsOf("b"), add); err != nil || effects(t, admin, "b") != 1 {
				t.Errorf("database/sql: error %v, %d effects", err, effects(t, admin, "b"))
			}
		})
	}
}

// TestCommitGivenUpLeavesItsConnectionADeadline: pgx goes on reading from it, and a
// deadline that is taken away again would let that last for ever.
func TestCommitGivenUpLeavesItsConnectionADeadline(t *testing.T) {
	t.Parallel()
	_, admin := newDatabase(t)
	w := newWire(t, &admin.Config().ConnConfig.Config)
	var lifted atomic.Int32
	pool := newPool(t, admin.Config().ConnString(), one, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := dial(ctx, network, w.Addr().String())
			return liftedConn{conn, &lifted}, err
		}
	})
	store := postgres.New(pool, postgres.WithCommitDeadline(time.Second))
	verdictOf(t, store, "warm up")
	if lifted.Swap(0) == 0 {
		t.Error("no deadline of a commit that went well was lifted")
	}
	w.arm(silent)
	wantIs(t, store.Atomic(t.Context(), claimsOf("a"), effectOf("a")), idempotency.ErrCommitUnknown)
	if lifted.Load() != 0 {
		t.Error("the deadline was lifted")
	}
}

// liftedConn counts how often its deadline is lifted.
type liftedConn struct {
	net.Conn

	lifted *atomic.Int32
}

func (c liftedConn) SetDeadline(at time.Time) error {
	if at.IsZero() {
		c.lifted.Add(1)
	}
	return c.Conn.SetDeadline(at)
}

// TestCommitThatHasBegunOutlivesItsContext: calling it off would only make its
// outcome unknown.
func TestCommitThatHasBegunOutlivesItsContext(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	execute(t, admin, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'`)
	execute(t, admin, `CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	gate, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.Background()) }()
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	store := postgres.New(newPool(t, url, one))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- store.Atomic(ctx, claimsOf("a"), effectOf("a")) }()
	eventually(t, "the commit at the gate", func() bool {
		return queryRow[int](t, admin, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`) == 1
	})
	cancel()
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the commit", done); err != nil || effects(t, admin, "a") != 1 {
		t.Errorf("error %v", err)
	}
}

func TestServerThatCannotBeReachedIsUnavailable(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	url := "postgres://nobody@" + address + "/none?connect_timeout=5"
	store, sqlStore := postgres.New(newPool(t, url)), postgres.NewSQL(newSQLPool(t, url))
	for _, err := range []error{
		store.Check(t.Context()), store.Migrate(t.Context()), store.Atomic(t.Context(), claimsOf("a"), effectOf("a")), sqlStore.Check(t.Context()),
		sqlStore.Atomic(t.Context(), claimsOf("a", "b"), func(context.Context, *sql.Tx, []idempotency.Verdict) error { return errors.New("called") }),
	} {
		wantIs(t, err, idempotency.ErrUnavailable)
	}
}
