package sqlite

import (
	"bytes"
	"database/sql/driver"
	"fmt"
	"strings"
	"unicode/utf8"
)

// text is a string with any bytes in it. Plain text stands as TEXT, so that a
// person can read and select it; the rest as BLOB, which SQLite keeps as it is.
// The two never compare equal, and one string always takes the same form.
type text string

func (t text) Value() (driver.Value, error) {
	if utf8.ValidString(string(t)) && strings.IndexByte(string(t), 0) < 0 {
		return string(t), nil
	}
	return []byte(t), nil
}

// blob reads a BLOB and tells NULL (nil) from empty (not nil), which the driver
// does in the type of the value only.
type blob []byte

func (b *blob) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*b = nil
	case []byte:
		*b = append(blob{}, bytes.Clone(value)...)
	default:
		return fmt.Errorf("a %T stands where a BLOB belongs", value)
	}
	return nil
}
