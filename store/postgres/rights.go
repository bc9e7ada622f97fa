package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/idempotency"
)

// part is what a role may be there for.
type part string

const (
	consumerRights part = "consumer"
	producerRights part = "producer"
	relayRights    part = "relay"
)

// allParts are what Check demands.
//
//nolint:gochecknoglobals // A constant in all but name.
var allParts = []part{consumerRights, producerRights, relayRights}

// ownRight is a right of a part that no other has: who has it is there for that part.
//
//nolint:gochecknoglobals // A constant in all but name.
var ownRight = map[part]string{consumerRights: "INSERT on record", producerRights: "INSERT on outbox", relayRights: "DELETE on outbox"}

// rightsSQL lists what the package documentation demands under Rights, and whether the
// role has it.
const rightsSQL = `
SELECT needed.part, privilege, needed.relation, CASE
	WHEN needed.columns IS NOT NULL THEN (
		SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(name, c, privilege)) FROM pg_catalog.unnest(needed.columns) AS c)
	WHEN needed.relation = 'outbox_number' THEN pg_catalog.has_sequence_privilege(name, privilege)
	ELSE pg_catalog.has_table_privilege(name, privilege) END
FROM (VALUES
	('consumer', 'record', '{SELECT,INSERT,DELETE}'::text[], NULL::text[]),
	('consumer', 'attempt', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('consumer', 'dead_letter', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('consumer', 'parked_key', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('producer', 'outbox', '{INSERT}', '{message_id,topic,key,payload,headers,deliver_after}'),
	('producer', 'outbox_number', '{USAGE}', NULL),
	('producer', 'outbox_cluster', '{SELECT}', NULL),
	('relay', 'outbox', '{SELECT,DELETE}', NULL),
	('relay', 'outbox', '{UPDATE}', '{xid}'),
	('relay', 'outbox_number', '{SELECT}', NULL),
	('relay', 'outbox_cluster', '{SELECT,INSERT,DELETE}', NULL),
	('relay', 'relay', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('relay', 'relay_instance', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('relay', 'relay_lane', '{SELECT,INSERT,UPDATE,DELETE}', NULL),
	('relay', 'aside', '{SELECT,INSERT,UPDATE,DELETE}', NULL)
) AS needed (part, relation, privileges, columns)
CROSS JOIN LATERAL pg_catalog.unnest(needed.privileges) AS privilege
CROSS JOIN LATERAL pg_catalog.format('%I.%I', $1::text, needed.relation) AS name`

// refuseMissingRights demands what the parts need: of several, those that the role is
// there for, or the first if there are none.
func (d *Database[Tx]) refuseMissingRights(ctx context.Context, r runner, parts ...part) error {
	missing, isThere := map[part][]string{}, map[part]bool{}
	err := r.query(ctx, query{d.sql(rightsSQL), []any{d.schema}, func(row scanner) error {
		var of, privilege, relation string
		var granted bool
		if err := row.Scan(&of, &privilege, &relation, &granted); err != nil {
			return err
		}
		p, right := part(of), privilege+" on "+relation
		if granted {
			isThere[p] = isThere[p] || right == ownRight[p]
		} else {
			missing[p] = append(missing[p], right)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	demanded := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !isThere[p] })
	if len(demanded) == 0 {
		demanded = parts[:1]
	}
	var lacks []string
	for _, p := range demanded {
		lacks = append(lacks, missing[p]...)
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the role lacks %s in schema %q: grant it all that the package documentation lists under Rights",
		idempotency.ErrUnavailable, strings.Join(lacks, ", "), d.schema)
}
