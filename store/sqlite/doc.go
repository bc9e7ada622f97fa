// Package sqlite is the embedded store: one file, no server. It is made for
// single-binary programs, for tests and for trying Onceward out.
//
//	store, err := sqlite.Open(ctx, "shop.db")
//	…
//	_, err = store.DB().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (…)")
//	billing := inbox.New(store, "billing", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
//		_, err := tx.ExecContext(ctx, "INSERT INTO orders …")
//		return err
//	})
//
// The application's tables live in the same file, because only then can one
// transaction hold the claim and the effect. The store's own are named onceward_*.
//
// # One writer
//
// SQLite lets one transaction write at a time, whatever it writes. A claim
// therefore waits for every other claim and write on the file, not only for
// those of its own key, and handlers should be quick: what a handler takes,
// everybody waits. Reads never wait and never hold up a writer (WAL).
//
//	idle ──BEGIN IMMEDIATE──▶ writing: claim, work ──COMMIT──▶ idle (recorded)
//	 │                           │
//	 │ lock held by another      └─ error, panic, ended context, kill:
//	 ▼ transaction                  ROLLBACK ──▶ idle (the key is free)
//	waiting ──claim wait over──▶ ErrInProgress
//
// A handler uses the transaction it is given. Inside it, a write through
// [Store.DB] or another call of the store waits for the handler itself and
// fails when the wait is over.
//
// Any number of processes may open the same file on the same machine. They
// share the lock by polling it, without a queue: one that never pauses between
// transactions can keep another one waiting. Network file systems don't work:
// WAL needs memory that all processes share.
//
// # The outbox
//
// Events are rows of onceward_event, which [Store.Append] writes in a transaction of
// [Store.DB] or in that of a handler. Their numbers are in the order of the
// commits, because there is one writer. So the position of a lane is the last number that
// was handled, and a replay sets it back. Reading is one walk behind that number, beside the writers; a relay
// with nothing to do reads one row at a time and writes nothing but its lease.
//
// An event's lane is a hash of its key, modulo the relay's lanes; events without a key
// take the lanes in turn. It is computed when an event is read, so other
// programs need not know of it. They write events by
//
//	INSERT INTO onceward_event (topic, key, payload) VALUES ('orders', 'order-17', '{"total": 12}')
//
// in the transaction of their own work. Key and payload are blobs, or text that
// stands for its bytes in UTF-8. Three more columns may be given:
//
//	id             text of up to 512 bytes; a UUIDv7 if it is left out
//	headers        JSON: [{"name": "a", "value": "text"}, {"name": "b", "base64": "AP8="}]
//	deliver_after  microseconds since 1970 (UTC)
//
// The others are the log's own: whoever gives a number, or changes the row of
// onceward_event in sqlite_sequence, may have events passed unread. Register refuses a
// log whose next number relays have passed. Rows are never updated, and deleted by
// PruneLog only. Headers of any other form make the event a dead letter, as do more than
// 64 MiB of key, payload and headers.
//
// A write of a relay waits for handlers like any other: a handler that takes longer
// than a lease has relays lose their lanes, and publish events again.
//
// # What a commit is worth
//
// Each commit is flushed to the disk (synchronous=FULL) before Atomic returns:
// what was acknowledged survives a kill of the process and of the machine. The
// price is one fsync for each transaction; batches share it. See [WithoutFsync]
// for the other choice.
//
// # Errors
//
//	what happened                               error                             what is known
//	another transaction held the lock too long  idempotency.ErrInProgress         nothing was done
//	disk full, I/O error, store closed          idempotency.ErrUnavailable        rolled back
//	I/O error while committing                  idempotency.ErrCommitUnknown      the next claim tells
//	the work ended the transaction              idempotency.ErrTransactionEnded   the next claim tells
//	events for a transaction that has ended     idempotency.ErrTransactionEnded   none was written
//	the tables are missing or of another age    idempotency.ErrNotMigrated        nothing was done
//	the context ended                           its error                         rolled back
//	a goroutine of the work is still at it      says so                           rolled back
//	anything else                               the work's error                  rolled back
//
// SQLite can end a transaction by itself, in a write that is interrupted by its
// context or in a statement with OR ROLLBACK. Work that ignores the error of such
// a statement and goes on, or sends COMMIT and goes on, writes nothing more: all
// commits after the end are refused (SQLITE_CONSTRAINT_COMMITHOOK). It is told by
// ErrTransactionEnded.
//
// Work that returns while a goroutine of its own still runs a statement is rolled
// back, and Atomic returns after a second. The statement cannot be interrupted but
// by its own context: until it ends, the file has its writer, and others get
// ErrInProgress.
package sqlite
