package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/onceward/onceward/idempotency"
)

// part is what a role may be there for.
type part string

const (
	consumerRights part = "consumer"
	relayRights    part = "relay"
)

// rightsSQL lists what the package documentation demands under Rights, and whether the
// role has it.
const rightsSQL = `
SELECT needed.part, needed.privilege, needed.relation, CASE
	WHEN needed.privilege = 'UPDATE (xid)' THEN pg_catalog.has_column_privilege(name, 'xid', 'UPDATE')
	WHEN needed.relation = 'outbox_number' THEN pg_catalog.has_sequence_privilege(name, needed.privilege)
	ELSE pg_catalog.has_table_privilege(name, needed.privilege) END
FROM (VALUES
	('consumer', 'record', 'SELECT'), ('consumer', 'record', 'INSERT'), ('consumer', 'record', 'DELETE'),
	('consumer', 'attempt', 'SELECT'), ('consumer', 'attempt', 'INSERT'), ('consumer', 'attempt', 'UPDATE'), ('consumer', 'attempt', 'DELETE'),
	('consumer', 'dead_letter', 'SELECT'), ('consumer', 'dead_letter', 'INSERT'), ('consumer', 'dead_letter', 'UPDATE'), ('consumer', 'dead_letter', 'DELETE'),
	('consumer', 'parked_key', 'SELECT'), ('consumer', 'parked_key', 'INSERT'), ('consumer', 'parked_key', 'UPDATE'), ('consumer', 'parked_key', 'DELETE'),
	('relay', 'outbox', 'SELECT'), ('relay', 'outbox', 'DELETE'), ('relay', 'outbox', 'UPDATE (xid)'), ('relay', 'outbox_number', 'SELECT'),
	('relay', 'outbox_cluster', 'SELECT'), ('relay', 'outbox_cluster', 'INSERT'), ('relay', 'outbox_cluster', 'DELETE'),
	('relay', 'relay', 'SELECT'), ('relay', 'relay', 'INSERT'), ('relay', 'relay', 'UPDATE'), ('relay', 'relay', 'DELETE'),
	('relay', 'relay_instance', 'SELECT'), ('relay', 'relay_instance', 'INSERT'), ('relay', 'relay_instance', 'UPDATE'), ('relay', 'relay_instance', 'DELETE'),
	('relay', 'relay_lane', 'SELECT'), ('relay', 'relay_lane', 'INSERT'), ('relay', 'relay_lane', 'UPDATE'), ('relay', 'relay_lane', 'DELETE'),
	('relay', 'aside', 'SELECT'), ('relay', 'aside', 'INSERT'), ('relay', 'aside', 'UPDATE'), ('relay', 'aside', 'DELETE')
) AS needed (part, relation, privilege)
CROSS JOIN LATERAL pg_catalog.format('%I.%I', $1::text, needed.relation) AS name`

// refuseMissingRights demands what the parts need. Of several, a role may be there for
// one alone: then it has nothing of the others.
func (d *Database[Tx]) refuseMissingRights(ctx context.Context, r runner, parts ...part) error {
	missing, has := map[part][]string{}, map[part]bool{}
	err := r.query(ctx, query{d.sql(rightsSQL), []any{d.schema}, func(row scanner) error {
		var of, privilege, relation string
		var granted bool
		if err := row.Scan(&of, &privilege, &relation, &granted); err != nil {
			return err
		}
		if granted {
			has[part(of)] = true
		} else {
			missing[part(of)] = append(missing[part(of)], privilege+" on "+relation)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	var lacks []string
	for i, p := range parts {
		if has[p] || i == 0 && len(has) == 0 || len(parts) == 1 {
			lacks = append(lacks, missing[p]...)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the role lacks %s in schema %q: grant it all that the package documentation lists under Rights",
		idempotency.ErrUnavailable, strings.Join(lacks, ", "), d.schema)
}
