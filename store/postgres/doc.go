// Package postgres keeps Onceward's records, attempts, dead letters and outbox in
// PostgreSQL 14 or later, in the application's own database: [New] over pgx, where
// handlers get a pgx.Tx, and [NewSQL] over database/sql, where they get a *sql.Tx.
//
//	store := postgres.New(pool)
//	err := store.Migrate(ctx)
//	billing := inbox.New(store, "billing", handle)
//	events := outbox.New(store)
//
// # One message
//
// With pgx, BEGIN and the claim are one round trip:
//
//	acquire ─▶ BEGIN READ COMMITTED + claim ─▶ work(tx) ─▶ COMMIT ─▶ release
//	               │        │                    │           │
//	               │        │ duplicate: the     │           └ from here on nothing is called off:
//	               │        │ claim waits for    │             a deadline of its own
//	               │        │ the first to end   └ error, panic, ctx ends: ROLLBACK
//	               └ ctx ends: the socket is closed, the server rolls back
//
// What ends a message early, and what is known then:
//
//	what happens                                 found by                       error                what is known
//	server away, full, starting, read-only       dial, 08, 53, 57P, 25006       ErrUnavailable       nothing was done
//	wrong user, password or database             28, 3D000                      ErrUnavailable       nothing was done
//	not migrated                                 42P01, 42703, 3F000            ErrNotMigrated       nothing was done
//	claim held for longer than the claim wait    55P03                          ErrInProgress        nothing was done
//	deadlock, serialization failure              40P01, 40001                   ErrConflict          rolled back
//	pooler lost a prepared statement             42P05, 26000                   ErrUnavailable       rolled back
//	a right is missing                           42501                          ErrUnavailable       nothing was done
//	an option of New cannot work                 every call                     ErrUnavailable       nothing was done
//	work returns an error                        -                              that error           rolled back
//	work panics                                  -                              the panic goes on    rolled back
//	connection lost during the work              closed connection              ErrUnavailable       rolled back by the server
//	a context of the work's own ends             closed connection              says so              rolled back by the server
//	ctx ends before the commit                   AfterFunc closes the socket    ctx's error          rolled back by the server
//	work swallowed a failed statement            transaction status E           says so              rolled back
//	server goes, full, read-only in the work     57P, 53100, 53300, 25006       ErrUnavailable       rolled back
//	work left rows open, or a goroutine at it    connection busy                says so              rolled back
//	work called Rollback of the lent pgx.Tx      the call                       says so              rolled back
//	work sent COMMIT or ROLLBACK                 transaction status I           ErrTransactionEnded  the record knows
//	constraint deferred to the commit fails      SQLSTATE of COMMIT             that error           rolled back
//	postgres_fdw can't commit elsewhere          08, the connection lives       that error           rolled back
//	connection lost or deadline during COMMIT    no answer, 08, 57P             ErrCommitUnknown     the record knows
//	this process dies                            the server, by the socket      -                    rolled back or committed
//
// The lent pgx.Tx cannot be committed or rolled back by the work, and is closed
// once the work has returned. A *sql.Tx can, and both can by an SQL statement:
// that is found when the work has returned, and told even if it returned an error
// or its context ended as well. A COMMIT after which the work begins another
// transaction is found in a statement of the lent pgx.Tx, which refuses all after
// it, and nowhere else: not on the connection beneath, nor in the midst of several
// statements in one string. Rollback of the lent pgx.Tx fails, and what follows is
// not committed even if the work returns nil; a deferred one after Commit is ignored.
//
// pgx closes the connection when the context of a statement ends. That is the work's
// failure and spends an attempt, whatever it makes of the error; an outage spends
// none. The lent pgx.Tx sees the context of each statement. Of a *sql.Tx, of
// pgx.Tx.Conn and of large objects nobody sees it: there the loss is the work's if
// the server answers at once and has been up since before the transaction began, so
// that a connection cut by the network spends an attempt as well.
//
// With database/sql three things depend on the driver. With pgx's stdlib they are
// as above. With others, COMMIT sent as a statement is seen only if the driver
// looks at the server's answer (lib/pq does: ErrCommitUnknown), and only if the
// work returned nil; an end of ctx hides that the work had ended its transaction;
// a statement of the work that does not heed its context, or that a goroutine of
// it still runs when it has returned, delays the rollback until it ends. (With
// pgx such a goroutine is cut off, after a second with database/sql.)
//
// # Waiting
//
// The store waits for rows that another transaction has locked or is inserting as
// long as [WithClaimWait] says, for each, and then gives up with ErrInProgress. The
// work's own statements wait as long as the user's lock_timeout says: it is put
// back before the work goes on. For a lock on a whole table (ALTER TABLE, VACUUM
// FULL, LOCK TABLE) Atomic's claim and ParkedKeys wait until ctx ends or by the
// user's lock_timeout: the server takes it when it parses a statement, before any
// part of it could set a bound, and a statement more for each claim costs more than
// the rare table lock does. Everything else waits for tables no longer than for rows.
//
// With pgx the bound on a claim is not the server's at first, since setting it costs
// more than a claim: when the claim has not ended within the claim wait, for whatever
// reason, the server is asked to cancel it, its connection is closed, and a second
// try, on another, is told at once whether somebody holds the claim. That costs a
// connection for each ErrInProgress. A lock_timeout of the user's own that is shorter
// than the claim wait bounds the first try as well. So does a statement_timeout, also
// through database/sql; then, too, a second try finds out. Other waits for rows end by
// it as ErrUnavailable: keep the claim wait below it.
//
// # Dead letters and parked keys
//
// A key is parked as long as parked_key has its row, and it has one as long as a
// dead letter parks it. Locks on the row keep that true, always taken before
// those on letters and in one order:
//
//	ParkedKeys        FOR KEY SHARE of the rows it finds: they stay until its transaction ends
//	AddDeadLetters    inserts the row, then FOR KEY SHARE
//	TakeDeadLetter    FOR UPDATE, removes the letter, and the row if it was the last one
//	Discard           the same for many
//
// A message's bytes come back as they were. Text stands in readable columns, in
// idempotency.StoredForm; what that loses stands in the column raw. A
// timestamp keeps microseconds, within the years 1 to 9999.
//
// # The outbox
//
// The log is a table that relays never write to. A row says which transaction wrote it; what
// a relay has handled is a snapshot, and the rows of a window are those that one snapshot
// sees and another does not. [pg_current_snapshot], pg_visible_in_snapshot and xid8 are
// all it takes; no lock, no open transaction, no state of a session:
//
//	             rows of a window              found by             in the order of
//	new          xid >= xmax(seen)             outbox_pkey          number, from a floor on
//	late         xid in xip(seen)              outbox_xid           number
//	replayed     number >= replay              outbox_pkey          number
//
// all of them visible in target, the snapshot that the window was opened with. A
// transaction that stays open, in any database of the cluster, prepared or not, is in xip until
// a window sees it ended. The floor bounds the scan, and is the delicate part: see floors,
// in floor.go, for why nothing is below it.
//
//	what happens                                  found by                              what follows
//	BEFORE trigger that sleeps, default of a      default of number takes the           nothing: larger
//	  row that takes long                           transaction's number first            numbers
//	savepoint rolled back                         the row is gone                       a gap
//	sequence with a CACHE, set back, or           Register (ErrLog), not while          events could be lost:
//	  another default                               relays run                            never do it
//	server crashes, replica takes over            relay_instance, unlogged, is empty    positions as saved, copies
//	dump loaded into another cluster              system_identifier (ErrRestored)       adopted: see Register
//	pg_upgrade                                    the same                              adopted as it is
//	disk or backup copied, point in time          nothing: all numbers still hold       positions as saved, copies
//	row written with headers that are none,       reading it                            Event.Invalid: a
//	  with a long ID, or of over 64 MiB                                                   dead letter
//	event deleted that is set aside               reading it                            Event.Invalid
//	instance wakes after its lease                epoch, in Settle                      nothing is saved
//
// A server that loses its last commits, in a crash with synchronous_commit off or in a failover, may
// have published events of theirs: no outbox can know.
//
// Any program may write events:
//
//	INSERT INTO onceward.outbox (topic, key, payload, headers)
//	VALUES ('orders', 'order-7', convert_to('{"paid":true}', 'UTF8'), '[["content-type","application/json"]]')
//
// in the transaction they belong to. message_id is a UUIDv7 and deliver_after is NULL unless given. All
// other columns belong to the log. Publish is the same INSERT.
//
// What a relay does all the time is one statement outside of a transaction block, under the
// connection's own isolation level. With SERIALIZABLE as default, give relays a role or a
// pool with READ COMMITTED, or conflicts with writers cost them more tries.
//
// # Restore
//
// Start relays and writers when the restore is complete. The first Register or Migrate adopts
// the log: it computes which rows the old positions have passed, and writes every row of the
// log once. Until then Append returns outbox.ErrRestored; programs that insert by themselves are
// found by the number that PostgreSQL keeps of each row.
//
// # Retention
//
// A record expires when the retention of its claim is over, by the database's
// clock. An inbox judges the age of messages by the application's clock, and so
// claims for a day longer than its own Retention. Prune deletes expired rows,
// oldest first. PruneLog does so with events, step by step: each looks at a bounded number of
// rows, behind those of the one before, whether they may go or must stay.
//
// # PgBouncer
//
// Transaction mode works: the store uses no session state. Without prepared
// statements in PgBouncer (before 1.21, or max_prepared_statements=0) connect
// with default_query_exec_mode=exec or cache_describe. pgx's default mode works as
// long as no two clients meet on a server connection, and fails now and then from
// there on, the work's own statements included: ErrUnavailable, which names this
// cure and spends no attempts. In pgx's describe_exec
// mode the store sends BEGIN by itself, at the price of one round trip, since
// only inside a transaction do both halves of a statement reach one server.
//
// # Rights
//
// Migrate needs to own the schema, or the right to create it (CREATE on the
// database) where it is missing. Consumers need no more than
//
//	GRANT USAGE ON SCHEMA onceward TO billing_consumer;
//	GRANT SELECT ON onceward.migration TO billing_consumer;
//	GRANT SELECT, INSERT, DELETE ON onceward.record TO billing_consumer;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.attempt, onceward.dead_letter, onceward.parked_key TO billing_consumer;
//
// UPDATE on parked_key is for the locks, DELETE on record and attempt for Prune.
//
// Whoever publishes, in Go or by plain SQL, needs the columns that are not the log's own
//
//	GRANT USAGE ON SCHEMA onceward TO billing_producer;
//	GRANT INSERT (message_id, topic, key, payload, headers, deliver_after) ON onceward.outbox TO billing_producer;
//	GRANT USAGE ON SEQUENCE onceward.outbox_number TO billing_producer;
//	GRANT SELECT ON onceward.migration, onceward.outbox_cluster TO billing_producer;
//
// and relays
//
//	GRANT USAGE ON SCHEMA onceward TO billing_relay;
//	GRANT SELECT ON onceward.migration, onceward.outbox_number TO billing_relay;
//	GRANT SELECT, DELETE, UPDATE (xid) ON onceward.outbox TO billing_relay;
//	GRANT SELECT, INSERT, DELETE ON onceward.outbox_cluster TO billing_relay;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON onceward.relay, onceward.relay_instance, onceward.relay_lane, onceward.aside TO billing_relay;
//
// DELETE on outbox is for PruneLog, UPDATE and what outbox_cluster needs for adopting a
// restored log. Operators need what relays do; to see the state of other roles' transactions in
// Holders, pg_read_all_stats as well. Check demands all rights
// of a part that a role is there for, which it tells by INSERT on record, INSERT on outbox, and DELETE on
// outbox.
//
// [pg_current_snapshot]: https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
package postgres
