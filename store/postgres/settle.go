package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/onceward/onceward/outbox"
)

// moveSQL saves positions, by the index relay_lane_pkey. A lane that somebody else took, or
// that an operator changed, has another epoch. An instance without a row in
// relay_instance has lost everything it knows in a crash of the server (see lease.go), and
// a log that came from another cluster is not to be read on from here (see restore.go).
//
// The statement has the number of a transaction even if it saves nothing; see
// floors for what follows from it.
//
// Positions alone do not wait for the disk ($5): a crash of the server may lose the last
// of them, and what was published since is published again, as after any crash. A
// relay would stand still for each flush, many times a second.
const moveSQL = `
WITH durability AS MATERIALIZED (
	SELECT CASE WHEN $5::boolean THEN '' ELSE pg_catalog.set_config('synchronous_commit', 'off', true) END AS chosen
), progress AS MATERIALIZED (
	SELECT n.lane, n.epoch, n.release, p.*
	FROM pg_catalog.json_to_recordset($3::text::json) AS n (lane integer, epoch bigint, release boolean, place integer)
	JOIN pg_catalog.json_to_recordset($4::text::json) AS p
		(place integer, seen pg_snapshot, floor bigint, target pg_snapshot, target_floor bigint, last bigint, replay bigint) ON p.place = n.place
	WHERE (SELECT chosen FROM durability) IS NOT NULL
), moved AS (
	UPDATE {schema}.relay_lane l
	SET seen = p.seen, floor = p.floor, target = p.target, target_floor = p.target_floor, last = p.last, replay = p.replay,
		owner = CASE WHEN NOT p.release THEN l.owner END, xid = pg_catalog.pg_current_xact_id()
	FROM progress p
	WHERE l.relay = $1::text AND l.lane = p.lane AND l.epoch = p.epoch AND l.owner = $2::text
	AND EXISTS (SELECT FROM {schema}.relay_instance i WHERE i.relay = $1::text AND i.instance = $2::text)
	AND ` + homeSQL + `
	RETURNING l.lane
)
SELECT p.lane, m.lane IS NOT NULL, pg_catalog.pg_current_xact_id()::text
FROM progress p LEFT JOIN moved m ON m.lane = p.lane`

// laneDocument and positionDocument are the arguments of moveSQL: lanes of a group
// share a position, and a snapshot can be long.
type laneDocument struct {
	Lane    int   `json:"lane"`
	Epoch   int64 `json:"epoch"`
	Release bool  `json:"release"`
	Place   int   `json:"place"`
}

type positionDocument struct {
	Place       int     `json:"place"`
	Seen        string  `json:"seen"`
	Floor       int64   `json:"floor"`
	Target      *string `json:"target"`
	TargetFloor int64   `json:"target_floor"`
	Last        int64   `json:"last"`
	Replay      int64   `json:"replay"`
}

// Settle implements outbox.RelayStore. If nothing is set aside or done it is one
// statement, else a transaction.
func (d *Database[Tx]) Settle(ctx context.Context, s outbox.Settlement) (outbox.Settled, error) {
	const doing = "settle"
	if d.invalid != nil || len(s.Lanes) == 0 {
		return outbox.Settled{}, d.invalid
	}
	moved := make(map[int]bool, len(s.Lanes))
	durably := len(s.Aside) > 0 || len(s.Done) > 0
	move, err := d.move(s, durably, moved)
	if err != nil {
		return outbox.Settled{}, err
	}
	var freed []string
	began := d.floors.settling()
	if !durably {
		err = d.alone(ctx, doing, move)
	} else {
		err = d.transact(ctx, doing, opening{query: move}, func(ctx context.Context, tx Tx) (err error) {
			r := d.transport.on(tx)
			if err = d.putAside(ctx, r, s.Relay, asidesOf(moved, s.Aside)); err == nil {
				freed, err = d.removeAside(ctx, r, s.Relay, asidesOf(moved, s.Done))
			}
			if err != nil {
				return storeError(ctx, doing, err)
			}
			return nil
		})
	}
	if err != nil {
		return outbox.Settled{}, err
	}
	settled := outbox.Settled{Freed: freed}
	for _, l := range s.Lanes {
		if !moved[l.Lane] {
			settled.Lost = append(settled.Lost, l.Lane)
		}
	}
	if len(settled.Lost) < len(s.Lanes) {
		d.floors.settled(began)
	}
	return settled, nil
}

// move notes which lanes were moved.
func (d *Database[Tx]) move(s outbox.Settlement, durably bool, moved map[int]bool) (query, error) {
	var positions []positionDocument
	places := map[outbox.Position]int{}
	lanes := make([]laneDocument, len(s.Lanes))
	for i, l := range s.Lanes {
		place, known := places[l.Position]
		if !known {
			place = len(positions)
			places[l.Position] = place
			p := positionDocument{
				Place: place, Seen: seenText(l.Position.Seen), Floor: l.Position.Floor, TargetFloor: l.Position.TargetFloor,
				Last: l.Position.Last, Replay: l.Position.Replay,
			}
			if l.Position.Target != "" {
				p.Target = &l.Position.Target
			}
			positions = append(positions, p)
		}
		lanes[i] = laneDocument{l.Lane, l.Epoch, l.Release, place}
	}
	// In one order everywhere, as far as the planner keeps it.
	slices.SortFunc(lanes, func(a, b laneDocument) int { return cmp.Compare(a.Lane, b.Lane) })
	laneText, err := json.Marshal(lanes)
	if err != nil {
		return query{}, err
	}
	positionText, err := json.Marshal(positions)
	if err != nil {
		return query{}, err
	}
	return query{d.sql(moveSQL), []any{s.Relay, s.Instance, string(laneText), string(positionText), durably}, func(row scanner) error {
		var lane int
		var saved bool
		var xid string
		if err := row.Scan(&lane, &saved, &xid); err != nil {
			return err
		}
		moved[lane] = saved
		return nil
	}}, nil
}

func asidesOf(lanes map[int]bool, asides []outbox.Aside) []outbox.Aside {
	return slices.DeleteFunc(slices.Clone(asides), func(a outbox.Aside) bool { return !lanes[a.Lane] })
}
