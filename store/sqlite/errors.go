package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/onceward/onceward/idempotency"
)

// failed wraps an error of the store's own statements with its meaning.
func failed(doing string, err error) error {
	meaning := error(nil)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case isBusy(err):
		meaning = idempotency.ErrInProgress
	case isUnavailable(err):
		meaning = idempotency.ErrUnavailable
	case strings.Contains(err.Error(), "no such table: onceward_"):
		return fmt.Errorf("sqlite: %s: %w: %w: sqlite.Open creates the tables", doing, idempotency.ErrNotMigrated, err)
	}
	if meaning == nil {
		return fmt.Errorf("sqlite: %s: %w", doing, err)
	}
	return fmt.Errorf("sqlite: %s: %w: %w", doing, meaning, err)
}

// primaryCode is SQLite's result code without the extension, or 0.
func primaryCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// isBusy: another connection holds the write lock.
func isBusy(err error) bool {
	code := primaryCode(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

// isOutage: the disk or memory under the database failed, not what was asked of it.
func isOutage(err error) bool {
	switch primaryCode(err) {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_READONLY:
		return true
	}
	return false
}

// isUnavailable: the store can't work at the moment. Only for errors of its own
// statements: in an error of the work, a bad connection may be that of any database.
func isUnavailable(err error) bool {
	switch primaryCode(err) {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_PERM:
		return true
	}
	return isOutage(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		strings.Contains(err.Error(), "sql: database is closed") // database/sql keeps this error to itself.
}

// isEnded: a COMMIT or ROLLBACK found no transaction, because the work ended it,
// through *sql.Tx or by a statement.
func isEnded(err error) bool {
	return errors.Is(err, sql.ErrTxDone) ||
		primaryCode(err) == sqlite3.SQLITE_ERROR && strings.Contains(err.Error(), "no transaction is active")
}

// isCommitUnknown: the commit record may be in the log although COMMIT failed,
// for instance when the flush after it did. A full disk is not among these: the
// record is the last thing written, and it did not fit.
func isCommitUnknown(err error) bool {
	return primaryCode(err) == sqlite3.SQLITE_IOERR || errors.Is(err, driver.ErrBadConn)
}
