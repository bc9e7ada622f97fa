// Package panicvalue tells what code of the user has panicked with.
package panicvalue

import (
	"fmt"
	"reflect"
)

// limit bounds the text, in bytes.
const limit = 8 << 10

// Text returns the value as text, without panicking. Of what is no error, no
// fmt.Stringer and of no basic kind it tells the type, as Go itself does: a value that
// contains itself would have fmt recurse until the stack overflows, which ends the process.
func Text(value any) string {
	text := whole(value)
	if len(text) > limit {
		const ellipsis = "…"
		return text[:limit-len(ellipsis)] + ellipsis
	}
	return text
}

func whole(value any) (text string) {
	defer func() {
		// fmt would print what its method panicked with.
		if recover() != nil {
			text = fmt.Sprintf("a %T whose method panicked, too; is it a nil pointer?", value)
		}
	}()
	switch v := value.(type) {
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	}
	if kind := reflect.ValueOf(value).Kind(); kind > reflect.Invalid && kind <= reflect.Complex128 || kind == reflect.String {
		return fmt.Sprint(value)
	}
	return fmt.Sprintf("a %T", value)
}
