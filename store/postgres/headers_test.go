package postgres

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onceward/onceward/inbox"
)

func TestReadableHeadersStayReadable(t *testing.T) {
	t.Parallel()
	for text, headers := range map[string][]inbox.Header{
		`[]`:                             {},
		`[["a","<é> & \"q\""],["a",""]]`: {{Name: "a", Value: []byte(`<é> & "q"`)}, {Name: "a", Value: []byte{}}},
		`[["",null]]`:                    {{}},
		`[[{"base64":"AA=="},{"base64":"/w=="}]]`: {{Name: "\x00", Value: []byte{0xff}}},
		`[["n","{\"base64\":\"AA==\"}"]]`:         {{Name: "n", Value: []byte(`{"base64":"AA=="}`)}},
		`[["n","null"]]`:                          {{Name: "n", Value: []byte(`null`)}},
	} {
		if got, err := headersText(headers); err != nil || got != text {
			t.Errorf("got %s, error %v, want %s", got, err, text)
		}
		back, err := parseHeaders[inbox.Header](text)
		if err != nil || !sameHeaders(back, headers) {
			t.Errorf("%s came back as %q, error %v", text, back, err)
		}
	}
}

func sameHeaders(a, b []inbox.Header) bool {
	return slices.EqualFunc(a, b, func(a, b inbox.Header) bool {
		return a.Name == b.Name && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
	})
}

func FuzzHeadersComeBack(f *testing.F) {
	f.Add("name", []byte("value"), true)
	f.Add("\x00\xff", []byte{}, false)
	f.Add("\u2028</script>", []byte("\xed\xa0\x80"), false)
	f.Fuzz(func(t *testing.T, name string, value []byte, absent bool) {
		if absent {
			value = nil
		}
		headers := []inbox.Header{{Name: name, Value: value}, {Name: string(value), Value: []byte(name)}}
		text, err := headersText(headers)
		if err != nil || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			t.Fatalf("text %q, error %v", text, err)
		}
		if back, err := parseHeaders[inbox.Header](text); err != nil || !sameHeaders(back, headers) {
			t.Fatalf("%s came back as %q, error %v", text, back, err)
		}
	})
}

func TestForeignHeadersColumnIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, `[["a"]]`, `[["a","b","c"]]`, `[["a",7]]`, `[[{"base64":"!"},"b"]]`, `nonsense`} {
		if got, err := parseHeaders[inbox.Header](text); err == nil {
			t.Errorf("%s was read as %q", text, got)
		}
	}
}
