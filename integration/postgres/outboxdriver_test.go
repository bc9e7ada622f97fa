package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/store/postgres"
)

// foreign is a driver that the store does not know.
type foreign struct{ driver.Connector }

func (f foreign) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return foreignConn{conn.(*stdlib.Conn)}, nil
}

type foreignConn struct{ *stdlib.Conn }

// TestRelayRunsOnDriversThatTheStoreDoesNotKnow: each of its statements is a transaction there.
func TestRelayRunsOnDriversThatTheStoreDoesNotKnow(t *testing.T) {
	t.Parallel()
	url, admin := newDatabase(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	log := &recorder{}
	config.Tracer = log
	db := sql.OpenDB(foreign{stdlib.GetConnector(*config)})
	t.Cleanup(func() { _ = db.Close() })
	publish(t, admin, postgres.New(admin), eventsOf("orders", "a", 5)...)()
	store := postgres.NewSQL(db)
	if err := everythingOfRelays(t, store); err != nil {
		t.Error(err)
	}
	log.sent = nil
	if _, err := store.FirstSince(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
	if len(log.sent) != 3 || !strings.HasPrefix(log.sent[0].SQL, "begin") || log.sent[2].SQL != "commit" {
		t.Errorf("sent is %+v", log.sent)
	}
}
