// Package postgres keeps Onceward's records, attempts and dead letters in
// PostgreSQL 14 or later, in the consumer's own database: [New] over pgx, where
// handlers get a pgx.Tx, and [NewSQL] over database/sql, where they get a *sql.Tx.
//
//	store := postgres.New(pool)
//	err := store.Migrate(ctx)
//	billing := inbox.New(store, "billing", handle)
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
// than the claim wait bounds the first try as well.
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
// # Retention
//
// A record expires when the retention of its claim is over, by the database's
// clock. An inbox judges the age of messages by the application's clock, and so
// claims for a day longer than its own Retention. Prune deletes expired rows,
// oldest first.
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
package postgres
