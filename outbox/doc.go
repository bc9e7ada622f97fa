// Package outbox publishes events exactly when the transaction that they belong to
// commits: at least once, in order per key, and with an id by which the reader
// drops the copies (package inbox does).
//
//	events := outbox.New(store)
//	err := events.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: id, Payload: body}) // joins tx
//
//	relay := outbox.NewRelay(store, publisher, outbox.RelayConfig{Name: "events"})
//	err := relay.Run(ctx) // until ctx ends, then stops cleanly
//
// A program needs [Outbox] with [Message], [Relay] with [RelayConfig], perhaps [Routes] or a
// [Publisher] of its own, and [Operator] with [Filter]. The other types are for those who write
// a store.
//
// # The log
//
// An event is a row that is written once, in the caller's transaction. Publishing
// never updates or deletes it, so there is nothing for VACUUM to do and nothing
// that gets slower when a transaction elsewhere stays open for hours. A [Relay]
// keeps a position in the log instead; any number of relays read one log, each
// with its own position, filter and publisher.
//
// # Lanes
//
// An event belongs to the lane that its key hashes to. Each lane is owned by one
// instance of the relay at a time, which keeps the events of a key in order.
// Instances share the lanes evenly; what a dead one owned is free when its lease is over.
//
//	        Lease: nobody's, or its owner's lease is over
//	free ────────────────────────────────────────────────▶ owned (epoch + 1)
//	  ▲                                                      │ read, publish, settle
//	  │  released: more than its share, or a clean stop      │
//	  ├──────────────────────────────────────────────────────┤
//	  │  lost: the lease is over and somebody took it, or    │
//	  │  an operator changed something: epoch + 1            │
//	  └──────────────────────────────────────────────────────┘
//
// Every write of a position carries the epoch. An instance that wakes after its
// lease has ended, from a debugger or a paused machine, cannot move a position any
// more; what it still publishes are copies, in order.
//
// # Windows
//
// Numbers are given when a row is written, but rows become visible when their transaction
// commits, so "all up to number 7" is no position: number 5 may appear later.
// A position in PostgreSQL is a snapshot, the set of transactions whose rows are
// handled. A window is what a later snapshot sees and that one did not:
//
//	            Read: target = current snapshot          all of the window handled
//	seen ──────────────────────────────────▶ seen, target, last ──────────────────▶ seen = target
//	                                           │      ▲
//	                                           └──────┘ last = number of the last event handled
//
// A window is read in the order of the numbers, in chunks. A transaction that stays open delays its own rows
// only: they come in the window that first sees them. Numbers are given in the order
// of the transactions that wait for each other, so the events of a key whose writers
// lock something (the order's row) are in order, whoever commits when. Package
// store/postgres says how the scan is bounded. SQLite has one writer; there the position
// is the last number.
//
// # One event in a relay
//
//	           ┌─ not due ──────────────▶ delayed ─┐ due
//	read ──────┼─ key is parked ────────▶ behind ──┤ those before it are gone
//	           │                                   ▼
//	           └──────────────────────────────▶ publish ──▶ acknowledged
//	                                            │  ▲
//	                      attempts < MaxAttempts│  │ backoff is over
//	                                            ▼  │
//	                                         retrying ──▶ dead, a dead letter: redrive or discard
//
// What is delayed, retrying, behind or dead is set aside: a row in a table of the
// relay, which the position passes. Under [BlockLane] a lane is not read while one of
// its events is retrying; under [ParkKey] only later events of the same topic and
// key wait, behind it, and go on waiting while it is dead. Events without a key
// and events that were delayed or redriven under BlockLane hold up nobody.
//
// # What a failure means
//
//	what happened                             attempt?  what follows
//	publisher acknowledges                    –         the position passes
//	publisher returns ErrUnavailable, its     no        lane waits with backoff, then the same events again;
//	  deadline or its context ends, it panics           its other lanes go on
//	  or calls runtime.Goexit
//	publisher returns ErrPermanent            –         dead at once
//	publisher returns another error           yes       retrying; dead after MaxAttempts
//	no route for the topic                    yes       as another error
//	store unavailable                         no        nothing is read; tried again with backoff
//	process dies between publish and settle   no        the next owner publishes again from the saved position: copies
//	lease lost while publishing               no        nothing is saved; the new owner publishes again: copies
//	lanes handed over or Run ended while an   –         what was acknowledged behind it is published again
//	  older event of the lane is unavailable            by the next owner: copies
//	settle's outcome unknown                  no        the same is saved once more, which changes nothing if it was
//	the log was restored into another cluster –         Register adopts it: unpublished events are published, others not
//
// # What is guaranteed, and what is not
//
//	exactly when the transaction commits      every event is published or set aside, none is lost
//	at least once                             copies after a crash, a lost or changed lane, an unknown acknowledgement, and
//	                                          after a stop in an outage; same ID
//	in order per topic and key                under both policies, after removing copies, for events that nobody set aside:
//	                                          under BlockLane a dead letter is overtaken, under ParkKey it is not
//	in no order                               events without a key; of different keys; delayed ones
package outbox
