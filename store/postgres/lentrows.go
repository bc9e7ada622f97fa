package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lentRows notes a loss of the connection while the rows of a query are read.
type lentRows struct {
	pgx.Rows

	ctx context.Context //nolint:containedctx // The one of the query.
	use *use
}

func (r *lentRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.use.note(r.ctx, r.Err())
	}
	return more
}

func (r *lentRows) Close() {
	r.Rows.Close()
	r.use.note(r.ctx, r.Err())
}

func (r *lentRows) Conn() *pgx.Conn {
	r.use.beneath.Store(true)
	return r.Rows.Conn()
}

type lentRow struct {
	pgx.Row

	ctx context.Context //nolint:containedctx // The one of the query.
	use *use
}

func (r *lentRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	r.use.note(r.ctx, err)
	return err
}

// lentResults does the same for the results of a batch.
type lentResults struct {
	pgx.BatchResults

	ctx context.Context //nolint:containedctx // The one of the batch.
	use *use
}

func (r *lentResults) Exec() (pgconn.CommandTag, error) {
	tag, err := r.BatchResults.Exec()
	r.use.note(r.ctx, err)
	return tag, err
}

func (r *lentResults) Query() (pgx.Rows, error) {
	rows, err := r.BatchResults.Query()
	r.use.note(r.ctx, err)
	return &lentRows{rows, r.ctx, r.use}, err
}

func (r *lentResults) QueryRow() pgx.Row { return &lentRow{r.BatchResults.QueryRow(), r.ctx, r.use} }

func (r *lentResults) Close() error {
	err := r.BatchResults.Close()
	r.use.note(r.ctx, err)
	return err
}
