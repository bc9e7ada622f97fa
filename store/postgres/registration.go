package postgres

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/outbox"
)

// addRelaySQL creates a relay unless it is there. It waits for another process that
// creates it now.
const addRelaySQL = `
INSERT INTO {schema}.relay (name, lanes, topics, policy, retention)
VALUES ($1::text, $2::integer, $3::text::text[], $4::text, $5::bigint::float8 OPERATOR(pg_catalog.*) interval '1 microsecond')
ON CONFLICT (name) DO NOTHING`

// addLanesSQL gives a relay its lanes, at the start of the log or behind $3 and $4.
const addLanesSQL = `
INSERT INTO {schema}.relay_lane (relay, lane, seen, floor)
SELECT $1::text, n, $3::text::pg_snapshot, $4::bigint FROM pg_catalog.generate_series(0, $2::integer - 1) AS n`

// readRelaySQL goes by the index relay_pkey. A row for each topic: drivers differ in
// how they read arrays.
const readRelaySQL = `
SELECT r.lanes, r.policy, (extract(epoch FROM r.retention) OPERATOR(pg_catalog.*) 1000000)::bigint, coalesce(t.topic, '')
FROM {schema}.relay r LEFT JOIN LATERAL pg_catalog.unnest(r.topics) WITH ORDINALITY AS t (topic, place) ON true
WHERE r.name = $1::text
ORDER BY t.place`

// Register implements outbox.RelayStore.
//
// A log that was restored from another cluster is adopted first, which writes all of its
// rows once: see restore.go. The restore must be complete.
func (d *Database[Tx]) Register(ctx context.Context, asked outbox.Registration) error {
	const doing = "register a relay"
	if err := d.inTransaction(ctx, doing, d.refuseLog); err != nil {
		return err
	}
	if err := d.adopt(ctx); err != nil {
		return err
	}
	start := outbox.Position{}
	if asked.FromNow {
		floor, err := d.safeFloor(ctx)
		if err != nil {
			return err
		}
		start.Floor = floor
	}
	recorded := asked
	err := d.inTransaction(ctx, doing, func(ctx context.Context, r runner) (err error) {
		if asked.FromNow {
			if start.Seen, err = currentSnapshot(ctx, r); err != nil {
				return err
			}
		}
		added, err := r.exec(ctx, d.sql(addRelaySQL), asked.Relay, int64(asked.Lanes), textsLiteral(asked.Topics), string(asked.Policy), microseconds(asked.Retention))
		if err != nil {
			return err
		}
		if added == 1 {
			_, err = r.exec(ctx, d.sql(addLanesSQL), asked.Relay, int64(asked.Lanes), seenText(start.Seen), start.Floor)
			return err
		}
		recorded, err = d.registration(ctx, r, asked.Relay)
		return err
	})
	if err != nil {
		return err
	}
	if different := differences(asked, recorded); len(different) > 0 {
		return fmt.Errorf("postgres: %w: relay %q: %s", outbox.ErrSettings, asked.Relay, strings.Join(different, "; "))
	}
	d.lanes.Store(asked.Relay, asked.Lanes)
	return nil
}

func (d *Database[Tx]) registration(ctx context.Context, r runner, relay string) (outbox.Registration, error) {
	recorded := outbox.Registration{Relay: relay}
	found := false
	err := r.query(ctx, query{d.sql(readRelaySQL), []any{relay}, func(row scanner) error {
		found = true
		var policy, topic string
		var retention int64
		if err := row.Scan(&recorded.Lanes, &policy, &retention, &topic); err != nil {
			return err
		}
		recorded.Policy, recorded.Retention = outbox.Policy(policy), duration(retention)
		if topic != "" {
			recorded.Topics = append(recorded.Topics, topic)
		}
		return nil
	}})
	if err == nil && !found {
		err = fmt.Errorf("%w: %q", outbox.ErrNoRelay, relay)
	}
	return recorded, err
}

func textsLiteral(texts []string) string {
	var literal arrayLiteral
	for _, text := range texts {
		literal.addText(text)
	}
	return literal.String()
}

// differences names what is asked for and what is recorded.
func differences(asked, recorded outbox.Registration) []string {
	var different []string
	differ := func(name string, asked, recorded any) {
		different = append(different, fmt.Sprintf("%s %v here, %v recorded: start all instances with the latter, or stop them all and change it in its row of the table relay", name, asked, recorded))
	}
	if asked.Lanes != recorded.Lanes {
		different = append(different, fmt.Sprintf("Lanes %d here, %d recorded: start all instances with the latter, or stop them all and call Operator.ChangeLanes",
			asked.Lanes, recorded.Lanes))
	}
	if !slices.Equal(asked.Topics, recorded.Topics) {
		differ("Topics", fmt.Sprintf("%q", asked.Topics), fmt.Sprintf("%q", recorded.Topics))
	}
	if asked.Policy != recorded.Policy {
		differ("Policy", asked.Policy, recorded.Policy)
	}
	if asked.Retention.Truncate(time.Microsecond) != recorded.Retention.Truncate(time.Microsecond) {
		differ("Retention", asked.Retention, recorded.Retention)
	}
	return different
}

const snapshotSQL = `SELECT pg_catalog.pg_current_snapshot()::text`

func currentSnapshot(ctx context.Context, r runner) (snapshot string, err error) {
	err = r.query(ctx, query{snapshotSQL, nil, func(row scanner) error { return row.Scan(&snapshot) }})
	return snapshot, err
}

const lastNumberSQL = `SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.outbox_number s`

// takeXactIDSQL gives the transaction a number, which completes at its commit.
const takeXactIDSQL = `SELECT pg_catalog.pg_current_xact_id()::text`

// safeFloor returns a floor for every snapshot that is taken after it returns: see
// floors for why.
func (d *Database[Tx]) safeFloor(ctx context.Context) (floor int64, err error) {
	err = d.inTransaction(ctx, "find the end of the log", func(ctx context.Context, r runner) error {
		err := r.query(ctx, query{d.sql(lastNumberSQL), nil, func(row scanner) error { return row.Scan(&floor) }})
		if err != nil {
			return err
		}
		return r.query(ctx, query{takeXactIDSQL, nil, func(row scanner) error { return row.Scan(new(string)) }})
	})
	return floor, err
}

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
// PostgreSQL prints it; how it prints the sequence depends on the search path.
//
//nolint:gochecknoglobals // A constant in all but name.
var numberDefault = regexp.MustCompile(`^\s*CASE\s+WHEN \(pg_current_xact_id\(\) IS NOT NULL\) THEN nextval\('([^']|'')*outbox_number"?'::regclass\)\s+ELSE NULL::bigint\s+END\s*$`)

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
		return fmt.Errorf("%w: the sequence caches %d numbers for each connection, which are used later than others: ALTER SEQUENCE %s CACHE 1", outbox.ErrLog, cache, sequence)
	case increment != 1, cycle:
		return fmt.Errorf("%w: the sequence does not count up by one: ALTER SEQUENCE %s INCREMENT 1 NO CYCLE", outbox.ErrLog, sequence)
	case !numberDefault.MatchString(number):
		return fmt.Errorf("%w: numbers are given before transactions have theirs: ALTER TABLE %s ALTER number SET DEFAULT "+
			"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval(%s) END", outbox.ErrLog, table, literal(sequence))
	case xid != "pg_current_xact_id()":
		return fmt.Errorf("%w: rows do not say which transaction wrote them: ALTER TABLE %s ALTER xid SET DEFAULT pg_current_xact_id()", outbox.ErrLog, table)
	}
	err = r.query(ctx, query{d.sql(logEndSQL), nil, func(row scanner) error { return row.Scan(&last, &used) }})
	if err == nil && last < used {
		err = fmt.Errorf("%w: the sequence has given %d numbers and %d are used: SELECT pg_catalog.setval(%s, %d)",
			outbox.ErrLog, last, used, literal(sequence), used)
	}
	return err
}
