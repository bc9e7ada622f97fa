package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/onceward/onceward/inbox"
)

// readLetter finds one letter by its primary key.
const readLetter = `SELECT ` + letterColumns + ` FROM onceward_dead_letter WHERE number = ?2 AND consumer = ?1`

// isBehind looks for an older letter of the same key in onceward_dead_letter_parked.
const isBehind = `
SELECT EXISTS (
    SELECT 1 FROM onceward_dead_letter
    WHERE parks_key AND consumer = ?1 AND topic = ?2 AND key = ?3 AND number < ?4)`

const deleteLetter = `DELETE FROM onceward_dead_letter WHERE number = ?1`

// TakeDeadLetter implements inbox.Store. The write lock keeps other takers out,
// so the loser of two finds the letter gone.
func (s *Store) TakeDeadLetter(
	ctx context.Context, consumer string, number int64, work func(ctx context.Context, tx *sql.Tx, letter inbox.DeadLetter) error,
) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		letter, err := take(ctx, tx, consumer, number)
		switch {
		case errors.Is(err, inbox.ErrGone), errors.Is(err, inbox.ErrBehind):
			return fmt.Errorf("sqlite: take dead letter %d: %w", number, err)
		case err != nil:
			return failed("take dead letter", err)
		}
		return work(ctx, tx, letter)
	})
}

func take(ctx context.Context, tx *sql.Tx, consumer string, number int64) (inbox.DeadLetter, error) {
	letter, err := scanLetter(tx.QueryRowContext(ctx, readLetter, text(consumer), number).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return letter, inbox.ErrGone
	}
	if err != nil {
		return letter, err
	}
	var behind bool
	if err := tx.QueryRowContext(ctx, isBehind, text(consumer), text(letter.Message.Topic), letter.Message.Key, number).Scan(&behind); err != nil {
		return letter, err
	}
	if behind {
		return letter, inbox.ErrBehind
	}
	_, err = tx.ExecContext(ctx, deleteLetter, number)
	return letter, err
}

const failLetter = `UPDATE onceward_dead_letter SET attempts = attempts + 1, error = ?3 WHERE number = ?2 AND consumer = ?1`

// FailDeadLetter implements inbox.Store. A letter that is no longer there is inbox.ErrGone.
func (s *Store) FailDeadLetter(ctx context.Context, consumer string, number int64, cause string) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, failLetter, text(consumer), number, text(cause))
		if err != nil {
			return failed("record failed redrive", err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return failed("record failed redrive", err)
		}
		if n == 0 {
			return fmt.Errorf("sqlite: dead letter %d: %w", number, inbox.ErrGone)
		}
		return nil
	})
}
