package postgres

import (
	"fmt"
	"strings"
)

// conditions are those of a filter, each with its argument, to be joined to others by AND.
type conditions struct {
	text strings.Builder
	args []any
}

// and adds a condition, in which %d stands for the number of its argument.
func (c *conditions) and(condition string, arg any) {
	c.args = append(c.args, arg)
	fmt.Fprintf(&c.text, " AND "+condition, len(c.args))
}

// among adds that a column is one of these numbers. Nil: any will do.
func (c *conditions) among(column string, numbers []int64) {
	if numbers == nil {
		return
	}
	var literal arrayLiteral
	for _, n := range numbers {
		literal.addInt(n)
	}
	c.and(column+" = ANY ($%d::text::bigint[])", literal.String())
}
