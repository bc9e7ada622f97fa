// Package idempotency holds the record: the row that says an intent was
// claimed, by its scope and key, and therefore will not be carried out twice.
//
// # The claim
//
// A claim is the single atomic insert of a record:
//
//	INSERT … ON CONFLICT DO NOTHING
//
// Claim first, decide after. Whoever inserted the row does the work; everybody
// else reads what became of it. Looking first and inserting later is a bug,
// because two lookers both see nothing.
//
// # Atomic mode
//
// [Store.Atomic] puts the claim, the work and the commit in one database
// transaction. In-progress is therefore never visible to anybody else: a
// concurrent claim of the same key waits for this transaction to end, and then
// either finds the completed record (the verdict is [Duplicate]) or, after a
// rollback, gets the claim itself ([Fresh]).
//
//	        claim                      work returns nil
//	none ─────────▶ claimed (only seen  ───────────────▶ recorded ──▶ expired
//	  ▲             by its transaction)      COMMIT                    (pruned)
//	  │                  │
//	  └──────────────────┘
//	   ROLLBACK, crash, lost connection: nothing happened, the key is free
//
// Certainty decides what an error means:
//
//	error                    what is known             what to do
//	work's own error         rolled back               by policy: try again, set aside
//	[ErrInProgress]          not claimed               try again a little later
//	[ErrConflict]            rolled back               try again at once, a few times
//	[ErrUnavailable]         not committed             try again when the store is back
//	[ErrCommitUnknown]       committed or not          try again: the record decides
//	[ErrTransactionEnded]    the work ended it itself  if it succeeded, try again: the
//	                                                   record decides; if not, see there
//
// A retry after any but the last is safe, because it begins with a claim.
package idempotency
