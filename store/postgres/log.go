package postgres

import (
	"database/sql"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

var (
	_ outbox.Store[pgx.Tx]  = (*Store)(nil)
	_ outbox.Store[*sql.Tx] = (*SQLStore)(nil)
)

// outboxLog is what a process knows of the log.
type outboxLog struct {
	appended outbox.Signal
	// home is a string. Not empty: the log was written in this cluster when somebody looked,
	// and a statement can tell that it is still the one, see lookHome.
	home   atomic.Value
	floors floors
	// registered is what each relay was registered with here, by name.
	registered sync.Map
}
