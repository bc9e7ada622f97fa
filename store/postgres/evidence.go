package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// uptimeSQL asks for how many seconds the server has been up.
const uptimeSQL = `SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.pg_postmaster_start_time())`

// uptimePatience is how long the answer may take: a server that is well gives it
// in milliseconds.
const uptimePatience = 2 * time.Second

// outlived reports that the server was up all the time since began. A transaction
// that lost its connection meanwhile did not lose it to a restart.
func outlived(ctx context.Context, began time.Time, uptime func(ctx context.Context, seconds *float64) error) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uptimePatience)
	defer cancel()
	var seconds float64
	return uptime(ctx, &seconds) == nil && seconds > time.Since(began).Seconds()
}

// lostByWork says that the work itself cost the connection, whatever it returned:
// its own failure, which spends an attempt. An outage does not, and a message that
// made one each time it is handled would never end.
func lostByWork(cause, err error) error {
	switch {
	case err == nil:
		return cause
	case isSentinel(err):
		// A statement of the store that came later and found no connection.
		return fmt.Errorf("%w; then: %v", cause, err) //nolint:errorlint // It would be taken for an outage.
	}
	return fmt.Errorf("%w; the work returned: %w", cause, err)
}

// errLostUnseen is all that is known of a connection that was lost where nobody
// watches, from a server that is well.
var errLostUnseen = errors.New("postgres: the connection was lost while the work ran, and the server is well: " +
	"a context of the work's own ended in a statement, or the work closed the connection")

var errLost = fmt.Errorf("postgres: connection lost while the work ran: %w", idempotency.ErrUnavailable)
