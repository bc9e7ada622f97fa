package postgres

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// windowRow is a row that readSQL returns.
type windowRow struct {
	eventRow

	// leftOut are the bytes that did not come along, see readColumns.
	leftOut *int64
	isLate  bool

	asked, isBinary bool
}

func (r *windowRow) dest() []any { return append(r.eventRow.dest(), &r.leftOut, &r.isLate) }

// wireRow is a row as pgx has it: the bytes that came, until the next one.
type wireRow interface {
	FieldDescriptions() []pgconn.FieldDescription
	RawValues() [][]byte
}

// read takes the row's values as they came. A relay that is behind reads hundreds of
// thousands of rows a second, of which Scan takes longer than all the rest. It reports false if
// they are not all in the form that it reads, as in the modes of pgx that speak text.
func (r *windowRow) read(row wireRow) bool {
	if !r.asked {
		r.asked, r.isBinary = true, inBinary(row.FieldDescriptions())
	}
	if !r.isBinary {
		return false
	}
	v := row.RawValues()
	r.number, r.slot = int64Of(v[0]), int64(binary.BigEndian.Uint16(v[1])) // a slot is never negative
	r.id = string(v[2])
	if r.topic != string(v[3]) { // Many have the same one.
		r.topic = string(v[3])
	}
	r.key, r.payload = copied(v[4], v[5])
	r.headers = nil
	if v[6] != nil {
		headers := string(v[6])
		r.headers = &headers
	}
	r.createdAt = int64Of(v[7])
	r.deliverAfter, r.waits, r.leftOut = nullableInt64(v[8]), nullableInt64(v[9]), nullableInt64(v[10])
	r.isLate = v[11][0] != 0
	return true
}

// windowTypes are those of windowRow's columns.
var windowTypes = [...]uint32{ //nolint:gochecknoglobals // A constant in all but name.
	pgtype.Int8OID, pgtype.Int2OID, pgtype.TextOID, pgtype.TextOID, pgtype.ByteaOID, pgtype.ByteaOID, pgtype.TextOID,
	pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.BoolOID,
}

// inBinary: text is the same bytes in both formats.
func inBinary(fields []pgconn.FieldDescription) bool {
	if len(fields) != len(windowTypes) {
		return false
	}
	for i, f := range fields {
		if f.DataTypeOID != windowTypes[i] || f.Format != pgtype.BinaryFormatCode && f.DataTypeOID != pgtype.TextOID {
			return false
		}
	}
	return true
}

func int64Of(value []byte) int64 {
	return int64(binary.BigEndian.Uint64(value))
}

func nullableInt64(value []byte) *int64 {
	if value == nil {
		return nil
	}
	n := int64Of(value)
	return &n
}

// copied are two values in one allocation, NULL apart from empty.
func copied(a, b []byte) (x, y []byte) {
	all := make([]byte, 0, len(a)+len(b))
	if a != nil {
		all = append(all, a...)
		x = all[:len(a):len(a)]
	}
	if b != nil {
		all = append(all, b...)
		y = all[len(a):]
	}
	return x, y
}
