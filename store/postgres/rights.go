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

// rightsSQL lists what the package documentation demands under Rights, and whether the
// role has it. The first right of each part is one that no other has.
const rightsSQL = `
SELECT needed.part, needed.privilege, needed.relation, CASE
	WHEN needed.columns IS NOT NULL THEN (
		SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege(name, c, needed.privilege)) FROM pg_catalog.unnest(needed.columns) AS c)
	WHEN needed.relation = 'outbox_number' THEN pg_catalog.has_sequence_privilege(name, needed.privilege)
	ELSE pg_catalog.has_table_privilege(name, needed.privilege) END
FROM (VALUES
	('consumer', 'record', 'INSERT', NULL::text[]), ('consumer', 'record', 'SELECT', NULL), ('consumer', 'record', 'DELETE', NULL),
	('consumer', 'attempt', 'SELECT', NULL), ('consumer', 'attempt', 'INSERT', NULL), ('consumer', 'attempt', 'UPDATE', NULL), ('consumer', 'attempt', 'DELETE', NULL),
	('consumer', 'dead_letter', 'SELECT', NULL), ('consumer', 'dead_letter', 'INSERT', NULL), ('consumer', 'dead_letter', 'UPDATE', NULL), ('consumer', 'dead_letter', 'DELETE', NULL),
	('consumer', 'parked_key', 'SELECT', NULL), ('consumer', 'parked_key', 'INSERT', NULL), ('consumer', 'parked_key', 'UPDATE', NULL), ('consumer', 'parked_key', 'DELETE', NULL),
	('producer', 'outbox', 'INSERT', '{topic,message_id,key,payload,headers,deliver_after}'),
	('producer', 'outbox_number', 'USAGE', NULL), ('producer', 'outbox_cluster', 'SELECT', NULL),
	('relay', 'outbox', 'DELETE', NULL), ('relay', 'outbox', 'SELECT', NULL), ('relay', 'outbox', 'UPDATE', '{xid}'), ('relay', 'outbox_number', 'SELECT', NULL),
	('relay', 'outbox_cluster', 'SELECT', NULL), ('relay', 'outbox_cluster', 'INSERT', NULL), ('relay', 'outbox_cluster', 'DELETE', NULL),
	('relay', 'relay', 'SELECT', NULL), ('relay', 'relay', 'INSERT', NULL), ('relay', 'relay', 'UPDATE', NULL), ('relay', 'relay', 'DELETE', NULL),
	('relay', 'relay_instance', 'SELECT', NULL), ('relay', 'relay_instance', 'INSERT', NULL), ('relay', 'relay_instance', 'UPDATE', NULL), ('relay', 'relay_instance', 'DELETE', NULL),
	('relay', 'relay_lane', 'SELECT', NULL), ('relay', 'relay_lane', 'INSERT', NULL), ('relay', 'relay_lane', 'UPDATE', NULL), ('relay', 'relay_lane', 'DELETE', NULL),
	('relay', 'aside', 'SELECT', NULL), ('relay', 'aside', 'INSERT', NULL), ('relay', 'aside', 'UPDATE', NULL), ('relay', 'aside', 'DELETE', NULL)
) AS needed (part, relation, privilege, columns)
CROSS JOIN LATERAL pg_catalog.format('%I.%I', $1::text, needed.relation) AS name`

// refuseMissingRights demands what the parts need. Of several, a role may be there for
// one alone: then it lacks what sets the others apart.
func (d *Database[Tx]) refuseMissingRights(ctx context.Context, r runner, parts ...part) error {
	missing, known, isThere := map[part][]string{}, map[part]bool{}, map[part]bool{}
	err := r.query(ctx, query{d.sql(rightsSQL), []any{d.schema}, func(row scanner) error {
		var of, privilege, relation string
		var granted bool
		if err := row.Scan(&of, &privilege, &relation, &granted); err != nil {
			return err
		}
		p := part(of)
		if !known[p] {
			known[p], isThere[p] = true, granted
		}
		if !granted {
			missing[p] = append(missing[p], privilege+" on "+relation)
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
