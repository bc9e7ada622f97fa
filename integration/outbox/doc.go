// Package outbox proves the outbox by force: writers do everything that makes the order of commits unlike the order of numbers,
// relays die, freeze and lose their servers meanwhile, and in the end what was published is held against what was committed.
//
// # The ledger
//
// A transaction that publishes an event also writes it into a table, the ledger: key and number. The number is
// taken from the key's row of another table, the tally, under a lock of the key that the transaction holds until it ends, as a service locks
// an order before it changes it. So the ledger is what was committed, and the numbers of a key are the order of its commits.
//
//	writers ──▶ onceward.outbox ──▶ relays ──▶ journal or Kafka
//	   └──────▶ ledger ──────────────────────────┴──▶ verdict
//
// # The verdict
//
// Everything in the ledger was published, nothing else was, and the first copies of each key are in the order of their numbers. Without
// a crash there is one copy of each. What an operator gave up, by Skip or Discard, is left out.
//
// # Seeds
//
// Every random schedule prints its seed. ONCEWARD_OUTBOX_SEED=n repeats it, as far as the machine plays along.
package outbox
