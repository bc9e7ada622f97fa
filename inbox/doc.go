// Package inbox handles each message once, whatever the broker does: at-least-once
// delivery in, exactly-once effect out.
//
//	billing := inbox.New(store, "billing", func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
//		_, err := tx.Exec(ctx, "INSERT INTO invoices …")
//		return err
//	})
//
// An [Inbox] is a [Processor]. An adapter reads messages from a broker, passes
// them to Process and settles them by their [Result]; the handler writes to the
// database on the transaction it is lent. The record that the message was handled
// is part of that transaction, so both are there or neither.
//
// # What becomes of a message
//
//	             ┌──▶ Processed   handled, committed
//	             ├──▶ Duplicate   was handled, or set aside, before
//	delivery ────┤
//	             ├──▶ Parked      a dead letter holds it, whole
//	             ├──▶ Failed      rolled back; deliver it again after RetryAfter
//	             └──▶ NotRun      nothing was decided; deliver it again
//
// The first three are settled: the broker may forget the message. Messages are
// handled in the order given and Process stops at the first Failed one, so that
// no message overtakes one that it may depend on.
//
// A message is known by consumer, Source and ID. Adapters find the ID as [Identity]
// says. An empty Source is an error of the adapter: Process runs nothing and says so,
// because IDs of several sources would be mixed up.
//
// # What a failure means
//
//	what happened                             attempt?  what follows
//	handler returns an error                  yes       Failed; Parked after MaxAttempts
//	handler returns Permanent(err)            –         Parked at once
//	handler returns RetryAfter(err, d)        yes       as an error, with the pause d
//	handler panics, or calls runtime.Goexit   yes       as an error; the process lives on
//	  or returns a nil pointer as an error    yes       as a panic
//	handler runs past HandlerTimeout          yes       as an error; its context is cancelled
//	  and does not return a second later      yes       also abandoned, see below
//	handler commits tx and returns nil        yes       Failed; the next claim says Duplicate
//	handler commits tx and fails              –         Parked, unfinished, see below
//	handler rolls back tx                     yes       as an error
//	commit refused, as by a constraint        yes       Failed; Parked after MaxAttempts
//	  or an SQL error the handler swallowed
//	claim is in progress elsewhere            no        Failed for a second
//	deadlock or serialization failure         no        run again at once, five times at most
//	  and again the sixth time                yes       as an error
//	store unavailable or not migrated         no        Process returns the error
//	commit outcome unknown                    no        Process returns the error; the record decides
//	ctx of Process ended                      no        Process returns the error
//	message has no ID                         –         Parked, missing_id
//	  or Identity.Missing panics              –         as without; the letter says why
//	message is older than Retention           –         Parked, too_old, unless it is a Duplicate
//	ID known with another payload             –         Parked, id_reused (FingerprintPayload)
//	key waits behind a dead letter            –         Parked, behind (ParkKey)
//
// Attempts are counted in a transaction of their own, so they survive the
// rollback, restarts, and a change of the consuming process. Setting aside writes
// record and dead letter in one transaction: redeliveries of a dead message are
// duplicates.
//
// A batch (see [Batch]) that fails is rolled back and run again one by one. Until
// then nothing is counted, so the bad message alone bears the attempt.
//
// When ctx ends, the handler's context ends, too. A handler that finishes within
// a second is still committed: its work is not wasted, and the redelivery is a
// duplicate. Whatever it returns instead spends no attempt, because the
// failure may be the doing of the cancelled context.
//
// A handler that ignores its cancelled context for a second is abandoned: its
// transaction is rolled back under it and its goroutine is left behind, since Go
// cannot stop one. Nothing it does later on tx has an effect. Each abandoned
// handler holds its memory until it returns, so EventAbandoned calls for a repair.
//
// # A handler that ends its transaction
//
// Commit and rollback are the inbox's. A handler that commits by itself commits the
// records of all messages of its [Batch], also of those whose handlers then fail
// or never run; the next claims call them duplicates. The inbox remembers which
// had not succeeded and sets them aside as unfinished, and reports the mistake as
// EventFailed. The dead letters of the batch were written before its handlers ran, so
// they are committed as well. This memory is in the process: if it dies between the handler's
// commit and the next claim, or another process is delivered the message first,
// the duplicate is believed and the message lost. The store tells the inbox of an
// ended transaction; see its documentation for what it cannot see. What handlers
// write after one of them has committed and begun another transaction by
// statements of its own is not guaranteed by anything. A handler that
// never returns or ends its goroutine may have committed before: its messages are
// remembered, too. If such a one was rolled back, and another process handles the
// message before the next claim here, its letter is needless: look at the effects
// before redriving an unfinished message.
//
// # Dead letters
//
// A dead letter keeps the message until a person calls [Inbox.Redrive] or
// [Inbox.Discard]; both take a [Filter] and a [Mode]. Redrive handles the message
// and removes the letter in one transaction. It leaves out messages without an ID
// unless it is asked for them. With [ParkKey], later messages of the
// same topic and key wait behind a dead letter in order; without it, they go on.
//
// # Retention
//
// A record lives for [Retention] and a day, and if the message is stamped in the
// future, for as long again as that is away. A message older than Retention,
// by its own timestamp and the clock of this process, is not run: its record may
// have expired. The day between is for clocks, which may be wrong by less than that.
// Messages without a timestamp can't be judged: they are run, and once more if they
// are delivered again after Retention. A dead letter that waits longer than its record
// lives may have been sent and handled again meanwhile; see [Inbox.Redrive]. Maintain
// prunes what expired, in batches, one process at a time.
//
// # What is guaranteed, and what is not
//
//	exactly once           writes on tx; events published on tx; removal of a redriven letter
//	at least once          anything else a handler does: HTTP calls, e-mail, another database
//	in order               messages of one Process call, up to the first failure
//	not in order           messages given to several calls at the same time: the adapter's task
//	after dead letters     in order with ParkKey, else not
//
// The guarantee needs an ID that is equal on every delivery and differs between
// messages, a Retention that outlives the last duplicate, a consumer name that
// stays, and a handler that keeps to tx.
package inbox
