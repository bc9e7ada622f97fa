package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // Registers the driver "sqlite": SQLite in pure Go.

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/outbox"
)

const defaultClaimWait = 5 * time.Second

var (
	_ inbox.Store[*sql.Tx]  = (*Store)(nil)
	_ outbox.Store[*sql.Tx] = (*Store)(nil)
)

// Store keeps records, attempts and dead letters, and the log of events and its
// relays, in one SQLite file. It is safe for concurrent use; make one per process
// and file.
type Store struct {
	path      string
	claimWait time.Duration

	// writer has a single connection: write transactions of this process queue
	// for it and meet only those of other processes at the file's lock, which
	// is polled. Handlers run on it. One claim per transaction, eight
	// goroutines (BenchmarkAtomic/fsync/goroutines=8/batch=1): 614 to 904
	// commits/s with one connection, 178 to 424 with eight; three runs each,
	// two busy cores.
	writer *sql.DB
	guard  *guard

	// db is for everything else: reads, and the application's own work.
	db *sql.DB

	claimOne  *sql.Stmt
	claimMany *sql.Stmt

	// appended tells relays of this process of new events.
	appended outbox.Signal

	// registered is what each relay was registered with here, by name.
	registered sync.Map

	pruning, pruningLog sync.Mutex
}

type config struct {
	claimWait   time.Duration
	synchronous string
}

// Option changes a default of Open.
type Option func(*config)

// WithClaimWait sets how long a transaction waits for others to end before it
// gives up with idempotency.ErrInProgress. Default: 5 s. It must be at least a
// millisecond.
func WithClaimWait(d time.Duration) Option {
	return func(c *config) { c.claimWait = d }
}

// WithoutFsync lets a commit return before the disk has it (synchronous=NORMAL).
// A killed process still loses nothing. A machine that loses power or crashes may
// lose the latest commits: effects of messages that were already acknowledged, so
// that nobody delivers them again. The file stays consistent.
func WithoutFsync() Option {
	return func(c *config) { c.synchronous = "NORMAL" }
}

// Open opens the SQLite file at path, creates it if it does not exist, and
// brings the store's tables in it up to date. The folder must exist and be
// writable, since SQLite keeps two more files beside it (path-wal, path-shm).
//
// path is a plain path, not a URI. ":memory:" and "" are refused: each
// connection would get a database of its own, and the second one no tables.
// Tests use a file in t.TempDir().
//
// Open waits for other processes that are opening the same file, no longer than
// the claim wait. Close the store when nothing uses it any more.
func Open(ctx context.Context, path string, options ...Option) (*Store, error) {
	cfg := config{claimWait: defaultClaimWait, synchronous: "FULL"}
	for _, option := range options {
		option(&cfg)
	}
	switch {
	case path == "", path == ":memory:":
		return nil, fmt.Errorf("sqlite: path is %q: a database in memory belongs to one connection and the store needs several: "+
			"name a file, in tests one in t.TempDir()", path)
	case strings.HasPrefix(path, "file:"):
		return nil, errors.New("sqlite: path begins with \"file:\": give a plain path, the store sets its own URI parameters")
	case strings.ContainsRune(path, 0):
		return nil, errors.New("sqlite: path contains a NUL byte")
	case cfg.claimWait < time.Millisecond:
		return nil, fmt.Errorf("sqlite: claim wait is %v: give at least a millisecond", cfg.claimWait)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}

	if err := registerSlot(); err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	dsn := cfg.dsn(path)
	s := &Store{path: path, claimWait: cfg.claimWait}
	if s.guard, err = newGuard(dsn); err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	s.writer = sql.OpenDB(s.guard)
	if s.db, err = sql.Open("sqlite", dsn); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: open %s: %w", path, err), s.writer.Close())
	}
	s.writer.SetMaxOpenConns(1)
	// Idle connections cost a file handle each and save 0.3 ms of opening.
	// The number of open ones is left to the application: a bound could make
	// a handler wait for a connection that waits for the handler.
	s.db.SetMaxIdleConns(max(4, runtime.GOMAXPROCS(0)))

	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// dsn asks for the settings that belong to a connection. Transactions begin by
// taking the write lock (immediate): one that reads first and writes later fails
// at once, without waiting, if somebody else wrote in between.
func (c config) dsn(path string) string {
	parameters := url.Values{
		"_txlock":       {"immediate"},
		"_busy_timeout": {strconv.FormatInt(c.claimWait.Milliseconds(), 10)},
		"_foreign_keys": {"1"},
		"_synchronous":  {c.synchronous},
	}
	// Only Path is escaped in the way SQLite undoes: "?" and "#" may be in it.
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: parameters.Encode()}).String()
}

func (s *Store) prepare(ctx context.Context) (err error) {
	if err := s.useWAL(ctx); err != nil {
		return err
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if s.claimOne, err = s.writer.PrepareContext(ctx, claimOne); err != nil {
		return failed("prepare", err)
	}
	if s.claimMany, err = s.writer.PrepareContext(ctx, claimMany); err != nil {
		return failed("prepare", err)
	}
	return nil
}

// useWAL switches the file to write-ahead logging, once for all processes. The
// switch needs the file alone and does not wait for it, so we do.
func (s *Store) useWAL(ctx context.Context) error {
	deadline := time.NewTimer(s.claimWait)
	defer deadline.Stop()
	for {
		var mode string
		err := s.writer.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode)
		switch {
		case err == nil && mode == "wal":
			return nil
		case err == nil:
			return fmt.Errorf("sqlite: %s stays in journal mode %q: WAL needs a local file system, on which processes can share memory", s.path, mode)
		case !isBusy(err):
			return failed("open "+s.path, err)
		}
		retry := time.NewTimer(5 * time.Millisecond)
		select {
		case <-retry.C:
		case <-deadline.C:
			return failed("open "+s.path, err)
		case <-ctx.Done():
			return failed("open "+s.path, ctx.Err())
		}
	}
}

// DB returns the database the store lives in, for the application's own tables
// and reads. Its transactions begin by taking the write lock, unless they are
// begun with sql.TxOptions.ReadOnly. Its settings (WAL, busy timeout, foreign
// keys on) are the store's. It belongs to the store: don't close it.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the database, DB included. It waits for transactions that are
// under way. Every later call of the store is idempotency.ErrUnavailable.
func (s *Store) Close() error {
	var errs []error
	for _, statement := range []*sql.Stmt{s.claimOne, s.claimMany} {
		if statement != nil {
			errs = append(errs, statement.Close())
		}
	}
	return errors.Join(append(errs, s.writer.Close(), s.db.Close())...)
}
