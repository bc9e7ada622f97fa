package servers

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/integration/stack"
)

// Postgres returns the URL of an empty database on a server that keeps what it
// committed: fsync and synchronous_commit are on. It is a server of the program's
// own, or the one ONCEWARD_TEST_POSTGRES names.
func (p *Program) Postgres(ctx context.Context) (url string, err error) {
	if os.Getenv("ONCEWARD_TEST_POSTGRES") != "" {
		url = stack.Postgres(p) //nolint:contextcheck // the stack's servers outlive any context
	} else {
		url = stack.NewPostgres(p, "fsync=on").Database() //nolint:contextcheck // the stack's servers outlive any context
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	for _, setting := range []string{"fsync", "synchronous_commit"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
			return "", fmt.Errorf("read the server's %s: %w", setting, err)
		}
		if value != "on" {
			return "", fmt.Errorf("the server has %s=%s: a commit that is not on disk costs nothing, so set it to on", setting, value)
		}
	}
	return url, nil
}
