package panicvalue_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/panicvalue"
)

// selfish's method panics with a value that contains itself.
type selfish struct{}

func (selfish) Error() string { panic(cycle()) }

type code int

func cycle() []any {
	a := []any{nil}
	a[0] = a
	return a
}

func TestValueIsTextWhateverItIs(t *testing.T) {
	t.Parallel()
	type node struct{ next any }
	loop := &node{}
	loop.next = loop
	table := map[string]any{}
	table["itself"] = table
	var none *time.Time
	for want, value := range map[string]any{
		"boom":          "boom",
		"refused":       errors.New("refused"),
		"1m30s":         90 * time.Second,
		"7":             code(7),
		"2.5":           2.5,
		"true":          true,
		"[]interface {": cycle(),
		"*panicvalue":   loop,
		"map[string]":   table,
		"struct {}":     struct{}{},
		"method":        selfish{},
		"*time.Time":    none,
		"nil":           nil,
	} {
		if got := panicvalue.Text(value); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}

func TestTextIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	for _, value := range []any{long, errors.New(long)} {
		if got := panicvalue.Text(value); len(got) > 8<<10 || !strings.HasPrefix(got, "xxx") {
			t.Errorf("%d bytes", len(got))
		}
	}
}
