package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// logShapeSQL describes what the order of the log hangs on. The names in it are looked
// up as the catalogs have them, since a cast to regclass fails where one is missing.
const logShapeSQL = `
SELECT s.seqcache, s.seqincrement, s.seqcycle,
	coalesce(pg_catalog.max(pg_catalog.pg_get_expr(d.adbin, d.adrelid)) FILTER (WHERE a.attname = 'number'), ''),
	coalesce(pg_catalog.max(pg_catalog.pg_get_expr(d.adbin, d.adrelid)) FILTER (WHERE a.attname = 'xid'), '')
FROM pg_catalog.pg_namespace n
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'outbox_number'
JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = 'outbox'
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
WHERE n.nspname = $1::text
GROUP BY s.seqcache, s.seqincrement, s.seqcycle`

// numberDefault is what number's default must be: the transaction's number first. As
// PostgreSQL prints it; how it prints the sequence depends on the search path, and names
// are quoted with quote_all_identifiers.
//
//nolint:gochecknoglobals // Constants in all but name.
var (
	numberDefault = regexp.MustCompile(
		`^\s*CASE\s+WHEN \("?pg_current_xact_id"?\(\) IS NOT NULL\) ` +
			`THEN "?nextval"?\('([^']|'')*outbox_number"?'::"?regclass"?\)\s+ELSE NULL::bigint\s+END\s*$`)
	xidDefault = regexp.MustCompile(`^"?pg_current_xact_id"?\(\)$`)
)

// logEndSQL reads, by the indexes outbox_pkey and relay_lane_pkey, how far numbers have
// been given and used.
const logEndSQL = `
SELECT (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s),
	GREATEST(coalesce((SELECT pg_catalog.max(o.number) FROM {schema}.outbox o), 0), coalesce((SELECT pg_catalog.max(l.floor) FROM {schema}.relay_lane l), 0))`

// refuseLog returns outbox.ErrLog if the log cannot be read in order, with the cure.
func (d *Database[Tx]) refuseLog(ctx context.Context, r runner) error {
	if err := d.refuseMissingRights(ctx, r, relayRights); err != nil {
		return err
	}
	var found, cycle bool
	var cache, increment, last, used int64
	var number, xid string
	err := r.query(ctx, query{logShapeSQL, []any{d.schema}, func(row scanner) error {
		found = true
		return row.Scan(&cache, &increment, &cycle, &number, &xid)
	}})
	if err != nil {
		return err
	}
	literal := func(name string) string { return "'" + strings.ReplaceAll(name, "'", "''") + "'" }
	sequence, table := d.quoted()+".outbox_number", d.quoted()+".outbox"
	switch {
	case !found:
		return fmt.Errorf("%w: schema %q lacks the outbox: run Migrate", idempotency.ErrNotMigrated, d.schema)
	case cache != 1:
		return fmt.Errorf("%w: the sequence caches %d numbers for each connection, which are used later than others: ALTER SEQUENCE %s CACHE 1",
			outbox.ErrLog, cache, sequence)
	case increment != 1, cycle:
		return fmt.Errorf("%w: the sequence does not count up by one: ALTER SEQUENCE %s INCREMENT 1 NO CYCLE", outbox.ErrLog, sequence)
	case !numberDefault.MatchString(number):
		return fmt.Errorf("%w: numbers are given before transactions have theirs: ALTER TABLE %s ALTER number SET DEFAULT "+
			"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval(%s) END", outbox.ErrLog, table, literal(sequence))
	case !xidDefault.MatchString(xid):
		return fmt.Errorf("%w: rows do not say which transaction wrote them: ALTER TABLE %s ALTER xid SET DEFAULT pg_current_xact_id()", outbox.ErrLog, table)
	}
	err = r.query(ctx, query{d.sql(logEndSQL), nil, func(row scanner) error { return row.Scan(&last, &used) }})
	if err == nil && last < used {
		err = fmt.Errorf("%w: the sequence has given %d numbers and %d are used: SELECT pg_catalog.setval(%s, %d)",
			outbox.ErrLog, last, used, literal(sequence), used)
	}
	return err
}
