package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// restarts reports that a statement, or the last of several, has ended the
// transaction or begun one, as COMMIT AND CHAIN does both.
func restarts(tag pgconn.CommandTag, sql string) bool {
	switch tag.String() {
	case "COMMIT", "BEGIN", "START TRANSACTION":
		return true
	case "ROLLBACK": // TO a savepoint has the same tag.
		return endsTransaction(lastStatement(sql))
	}
	return false
}

// endsTransaction is restarts for one statement, by its first words.
func endsTransaction(sql string) bool {
	first, rest := word(sql)
	switch strings.ToUpper(first) {
	case "COMMIT", "END", "ABORT", "BEGIN", "START":
		return true
	case "ROLLBACK":
		next, rest := word(rest)
		if strings.EqualFold(next, "WORK") || strings.EqualFold(next, "TRANSACTION") {
			next, _ = word(rest)
		}
		return !strings.EqualFold(next, "TO")
	}
	return false
}

// lastStatement is the last of the statements in sql. A literal is not told from
// what it looks like: with a semicolon or a comment in one, a rollback to a
// savepoint may go unseen; and what comes after it is refused.
func lastStatement(sql string) string {
	last := sql
	for rest := afterBlanks(sql); rest != ""; rest = afterBlanks(rest) {
		if rest[0] != ';' {
			_, rest = word(rest)
			continue
		}
		if rest = afterBlanks(rest[1:]); rest != "" {
			last = rest
		}
	}
	return last
}

const blanks = " \t\n\r\f\v"

// word is the first word of sql, or the first sign that is none.
func word(sql string) (first, rest string) {
	sql = afterBlanks(sql)
	switch end := strings.IndexAny(sql, blanks+";-/"); {
	case end < 0:
		return sql, ""
	case end == 0:
		return sql[:1], sql[1:]
	default:
		return sql[:end], sql[end:]
	}
}

// afterBlanks cuts off white space and comments.
func afterBlanks(sql string) string {
	for {
		sql = strings.TrimLeft(sql, blanks)
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		default:
			return sql
		}
	}
}

// afterComment cuts off a comment, with those nested in it.
func afterComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return sql[i+1:]
		}
	}
	return ""
}
