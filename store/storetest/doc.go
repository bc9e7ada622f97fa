// Package storetest is the conformance suite of an inbox.Store and of an
// outbox.Store: one test for each promise in the comments of idempotency.Store,
// inbox.Store, outbox.Store, outbox.RelayStore and outbox.OperatorStore. A store
// passes it by giving a [Harness] to [Run], and an [OutboxHarness] to [RunOutbox]:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Database[*sql.Tx] {
//			return newDatabase(t) // empty and migrated, this test's own
//		})
//		storetest.RunOutbox(t, func(t *testing.T) storetest.OutboxDatabase[*sql.Tx] {
//			return newOutboxDatabase(t)
//		})
//	}
//
// Every subtest is named after the rule it proves and works on a database of
// its own, in parallel with the others. What the contract leaves open is left
// open here: a store may answer a concurrent claim by waiting or with
// ErrInProgress, and may serialise transactions that have nothing to do with
// each other. A store with one writer passes the rules about transactions that are
// open beside others without running them.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

// Harness makes an empty, migrated database for one test, and has it removed
// by t.Cleanup. It also creates the table that AddEffect writes to.
type Harness[Tx any] func(t *testing.T) Database[Tx]

// Database is one database under test, shared by the stores that are opened on it.
// Its methods fail the test they were given or return what the database said.
type Database[Tx any] interface {
	// Open returns one more store on the database that shares nothing with the
	// others but the database itself, as another process would. Its claims
	// wait for claimWait at most. It is closed by t.Cleanup.
	Open(t *testing.T, claimWait time.Duration) inbox.Store[Tx]

	// AddEffect writes one row that says "name was carried out" in tx. Rows
	// are not unique: doing a thing twice must show.
	AddEffect(ctx context.Context, tx Tx, name string) error

	// CountEffects counts the committed rows of AddEffect with this name.
	CountEffects(t *testing.T, name string) int

	// Commit and Rollback end tx, as work that breaks its contract would.
	Commit(ctx context.Context, tx Tx) error
	Rollback(ctx context.Context, tx Tx) error

	// Age moves every time the stores have recorded back by d, which is the
	// same as letting d pass.
	Age(t *testing.T, d time.Duration)
}
