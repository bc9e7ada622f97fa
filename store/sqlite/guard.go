package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"modernc.org/sqlite"
)

// guard keeps what work writes within the transaction it was lent. SQLite ends
// one by itself in a statement that is interrupted or has OR ROLLBACK, and the
// statements after it, of the same work or the next in a batch, would be committed
// each by itself and done again later. The first commit of a transaction is the
// store's, or the work's own COMMIT. All that come after it are refused, and after
// a rollback the first as well; SQLite rolls back what it may not commit.
type guard struct {
	driver.Connector

	current atomic.Pointer[guarded]
}

// guarded is one transaction.
type guarded struct{ ended atomic.Bool }

func newGuard(dsn string) (*guard, error) {
	connector, err := sqlite.NewConnector(dsn)
	return &guard{Connector: connector}, err
}

// Connect implements driver.Connector.
func (g *guard) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := g.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	hooks, ok := conn.(sqlite.HookRegisterer)
	if !ok {
		return nil, errors.Join(errors.New("sqlite: the driver's connections take no hooks: use the version of modernc.org/sqlite in go.mod"), conn.Close())
	}
	hooks.RegisterCommitHook(g.onCommit)
	hooks.RegisterRollbackHook(g.onRollback)
	return conn, nil
}

func (g *guard) watch() *guarded {
	t := new(guarded)
	g.current.Store(t)
	return t
}

func (g *guard) unwatch(t *guarded) { g.current.CompareAndSwap(t, nil) }

// onCommit refuses a commit by anything but zero.
func (g *guard) onCommit() int32 {
	if t := g.current.Load(); t != nil && t.ended.Swap(true) {
		return 1
	}
	return 0
}

func (g *guard) onRollback() {
	if t := g.current.Load(); t != nil {
		t.ended.Store(true)
	}
}
