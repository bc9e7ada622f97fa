package postgres

import (
	"encoding/hex"
	"strconv"
)

// arrayLiteral builds the text form of a PostgreSQL array. A string is the one
// form of an array that every driver and exec mode can bind; the statement casts it.
type arrayLiteral struct{ text []byte }

func (a *arrayLiteral) next() {
	if len(a.text) == 0 {
		a.text = append(a.text, '{')
	} else {
		a.text = append(a.text, ',')
	}
}

func (a *arrayLiteral) addText(s string) {
	a.next()
	a.text = append(a.text, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a.text = append(a.text, '\\')
		}
		a.text = append(a.text, s[i])
	}
	a.text = append(a.text, '"')
}

// addBytes adds the text form of a bytea, or an empty text for nil.
func (a *arrayLiteral) addBytes(b []byte) {
	a.next()
	a.text = append(a.text, '"')
	if b != nil {
		a.text = hex.AppendEncode(append(a.text, `\\x`...), b)
	}
	a.text = append(a.text, '"')
}

func (a *arrayLiteral) addInt(n int64) {
	a.next()
	a.text = strconv.AppendInt(a.text, n, 10)
}

func (a *arrayLiteral) String() string {
	if len(a.text) == 0 {
		return "{}"
	}
	return string(append(a.text, '}'))
}
