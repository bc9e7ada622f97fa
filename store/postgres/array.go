package postgres

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// arrayLiteral builds the text form of a PostgreSQL array. A string is the one
// form of an array that every driver and exec mode can bind; the statement casts it.
type arrayLiteral struct{ b strings.Builder }

func (a *arrayLiteral) next() {
	if a.b.Len() == 0 {
		a.b.WriteByte('{')
	} else {
		a.b.WriteByte(',')
	}
}

func (a *arrayLiteral) addText(s string) {
	a.next()
	a.b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a.b.WriteByte('\\')
		}
		a.b.WriteByte(s[i])
	}
	a.b.WriteByte('"')
}

// addBytes adds the text form of a bytea, or an empty text for nil.
func (a *arrayLiteral) addBytes(b []byte) {
	a.next()
	a.b.WriteByte('"')
	if b != nil {
		a.b.WriteString(`\\x`)
		a.b.WriteString(hex.EncodeToString(b))
	}
	a.b.WriteByte('"')
}

func (a *arrayLiteral) addInt(n int64) {
	a.next()
	a.b.WriteString(strconv.FormatInt(n, 10))
}

func (a *arrayLiteral) String() string {
	if a.b.Len() == 0 {
		return "{}"
	}
	return a.b.String() + "}"
}
