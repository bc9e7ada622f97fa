package postgres

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/onceward/onceward/idempotency"
)

// serverError is an error type of no driver in particular.
type serverError string

func (e serverError) Error() string    { return "server says " + string(e) }
func (e serverError) SQLState() string { return string(e) }

var sentinels = []error{
	idempotency.ErrInProgress, idempotency.ErrConflict, idempotency.ErrUnavailable,
	idempotency.ErrCommitUnknown, idempotency.ErrTransactionEnded, idempotency.ErrNotMigrated,
}

// wantOnly fails unless err is the cause and exactly this sentinel; nil: none.
func wantOnly(t *testing.T, what string, err, cause, sentinel error) {
	t.Helper()
	if !errors.Is(err, cause) {
		t.Errorf("%s: %v hides its cause", what, err)
	}
	for _, s := range sentinels {
		if errors.Is(err, s) != (s == sentinel) { //nolint:errorlint // Which sentinel, not what it wraps.
			t.Errorf("%s: %v is %q: %t", what, err, s, errors.Is(err, s))
		}
	}
}

func TestFailureOfTheStoresOwnStatementIsAlwaysASentinel(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]error{
		"55P03": idempotency.ErrInProgress, "40001": idempotency.ErrConflict, "40P01": idempotency.ErrConflict,
		"42P01": idempotency.ErrNotMigrated, "42703": idempotency.ErrNotMigrated, "3F000": idempotency.ErrNotMigrated,
		"57P01": idempotency.ErrUnavailable, "57P03": idempotency.ErrUnavailable, "53300": idempotency.ErrUnavailable,
		"28P01": idempotency.ErrUnavailable, "3D000": idempotency.ErrUnavailable, "53200": idempotency.ErrUnavailable,
		"08006": idempotency.ErrUnavailable, "26000": idempotency.ErrUnavailable, "42501": idempotency.ErrUnavailable,
		"XX000": idempotency.ErrUnavailable, "": idempotency.ErrUnavailable,
	} {
		wantOnly(t, state, storeError(t.Context(), "claim", serverError(state)), serverError(state), want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantOnly(t, "ended context", storeError(ended, "claim", io.EOF), context.Canceled, nil)
}

func TestWorksErrorIsItsOwnUnlessTheTransactionSaysOtherwise(t *testing.T) {
	t.Parallel()
	own := errors.New("card declined")
	for what, c := range map[string]struct {
		err          error
		failed, lost bool
		want         error
	}{
		"healthy":                      {err: own},
		"healthy, foreign conflict":    {err: serverError("40001")},
		"failed, constraint":           {err: serverError("23505"), failed: true},
		"failed, NOWAIT of the work":   {err: serverError("55P03"), failed: true},
		"failed, table of the work":    {err: serverError("42P01"), failed: true},
		"failed, conflict":             {err: serverError("40P01"), failed: true, want: idempotency.ErrConflict},
		"failed, disk full":            {err: serverError("53100"), failed: true, want: idempotency.ErrUnavailable},
		"lost, shut down":              {err: serverError("57P01"), lost: true, want: idempotency.ErrUnavailable},
		"lost, idle for too long":      {err: serverError("25P03"), lost: true},
		"lost":                         {err: own, lost: true, want: idempotency.ErrUnavailable},
		"lost, and so a context ended": {err: context.DeadlineExceeded, lost: true, want: idempotency.ErrUnavailable},
		"lost, pooler lost the server": {err: serverError("08P01"), lost: true, want: idempotency.ErrUnavailable},
		"failed, temp_file_limit":      {err: serverError("53400"), failed: true},
		"failed, memory":               {err: serverError("53200"), failed: true},
		"failed, dblink":               {err: serverError("08001"), failed: true},
		"failed, connections":          {err: serverError("53300"), failed: true, want: idempotency.ErrUnavailable},
		"failed before":                {err: serverError("25P02"), failed: true},
		"failed, pooler":               {err: serverError("42P05"), failed: true, want: idempotency.ErrUnavailable},
		"foreign pooler":               {err: serverError("26000")},
		"already told":                 {err: idempotency.ErrInProgress, failed: true, want: idempotency.ErrInProgress},
	} {
		wantOnly(t, what, workError(c.err, c.failed, c.lost), c.err, c.want)
	}
}

func TestCommitIsUnknownUnlessTheServerSaidNo(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err          error
		unsent, lost bool
		want         error
	}{
		"no answer":           {err: io.EOF, lost: true, want: idempotency.ErrCommitUnknown},
		"deadline":            {err: context.DeadlineExceeded, lost: true, want: idempotency.ErrCommitUnknown},
		"shutting down":       {err: serverError("57P01"), lost: true, want: idempotency.ErrCommitUnknown},
		"pooler lost it":      {err: serverError("08P01"), lost: true, want: idempotency.ErrCommitUnknown},
		"postgres_fdw":        {err: serverError("08001")},
		"never sent":          {err: io.EOF, unsent: true, lost: true, want: idempotency.ErrUnavailable},
		"conflict":            {err: serverError("40001"), want: idempotency.ErrConflict},
		"disk full":           {err: serverError("53100"), want: idempotency.ErrUnavailable},
		"deferred constraint": {err: serverError("23503")},
	} {
		wantOnly(t, what, commitError(c.err, c.unsent, c.lost), c.err, c.want)
	}
}
