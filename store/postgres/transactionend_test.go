package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestOnlyARollbackToASavepointLeavesTheTransaction(t *testing.T) {
	t.Parallel()
	for sql, ends := range map[string]bool{
		"ROLLBACK TO a":                                      false,
		"rollback work to savepoint a;":                      false,
		"/* x /* y */ */ ROLLBACK -- z\n TRANSACTION TO a ;": false,
		"INSERT INTO t VALUES (1); ROLLBACK TO a; -- undone": false,
		"ROLLBACK": true,
		"ROLLBACK AND CHAIN -- go back to the start": true,
		"ROLLBACK /* to */ AND CHAIN":                true,
		"ROLLBACK TO a; ROLLBACK AND CHAIN":          true,
		"ABORT AND CHAIN":                            true,
	} {
		if got := restarts(pgconn.NewCommandTag("ROLLBACK"), sql); got != ends {
			t.Errorf("%s: ends the transaction: %t", sql, got)
		}
	}
	for sql, ends := range map[string]bool{
		"": false, ";": false, "-- COMMIT": false, "SELECT 1": false, "/* unclosed COMMIT": false,
		" commit and chain": true, "BEGIN": true, "END": true, "start transaction": true, "COMMIT;": true,
	} {
		if got := endsTransaction(sql); got != ends {
			t.Errorf("%q: ends the transaction: %t", sql, got)
		}
	}
}
