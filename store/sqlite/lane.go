package sqlite

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"sync"

	"modernc.org/sqlite"
)

// slots is the number of lanes at most. Lane = slot modulo lanes.
const slots = 1024

// slotOf is the slot of an event: a hash of its key (FNV-1a, 64 bits, folded), or
// its number in turn if it has none. It never changes: programs of several
// versions of Onceward may run one relay together.
func slotOf(key []byte, number int64) int {
	if key == nil {
		return int(uint64(number) % slots)
	}
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, b := range key {
		h = (h ^ uint64(b)) * prime
	}
	return int((h ^ h>>32) % slots)
}

// registerSlot makes slotOf known to SQLite, on every connection that this
// process opens from then on, as onceward_slot(key, number). Only statements of
// the store use it, none of the schema: other programs that write events need not have it.
var registerSlot = sync.OnceValue(func() error {
	return sqlite.RegisterFunction("onceward_slot", &sqlite.FunctionImpl{
		NArgs:         2,
		Deterministic: true,
		VolatileArgs:  true, // A key may be large.
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			number, ok := args[1].(int64)
			if !ok {
				return nil, fmt.Errorf("onceward_slot: the number is a %T", args[1])
			}
			var key []byte
			switch k := args[0].(type) {
			case nil:
			case string:
				key = append([]byte{}, k...)
			case []byte:
				key = k
				if key == nil {
					key = []byte{}
				}
			default:
				return nil, fmt.Errorf("onceward_slot: the key is a %T", k)
			}
			return int64(slotOf(key, number)), nil
		},
	})
})

// laneList is a list of lanes for json_each.
func laneList(lanes []int) (string, error) {
	if lanes == nil {
		lanes = []int{}
	}
	list, err := json.Marshal(lanes)
	return string(list), err
}
