package postgres

import (
	"bytes"
	"encoding/json"
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

func TestHeadersWrittenByHandAreRead(t *testing.T) {
	t.Parallel()
	want := []inbox.Header{{Name: "tenant", Value: []byte("a")}, {Name: "é", Value: nil}, {Name: "", Value: []byte{}}}
	for _, text := range []string{
		`[["tenant","a"],["é",null],["",""]]`,
		" [ [ \"tenant\" , \"a\" ] ,\n\t[\"é\",null\r], [ \"\",\"\"] ] ",
		`[["tenant","\u0061"],["\u00e9",null],["",""]]`,
		`[["tenant",{"base64":"YQ=="}],["é",null],[null,""]]`,
	} {
		if got, err := parseHeaders[inbox.Header](text); err != nil || !sameHeaders(got, want) {
			t.Errorf("%s was read as %q, error %v", text, got, err)
		}
	}
}

// What is read quickly is what encoding/json reads.
func FuzzPlainHeadersAreWhatTheyAreInJSON(f *testing.F) {
	for _, text := range []string{
		`[]`, ` [ ] `, `[["a","b"]]`, `[["a",null],["b",""]]`, `[["a","b"],]`, `[,["a","b"]]`, `[["a","b"]["c","d"]]`, `[["a","b"]],`,
		`[["a","b",]]`, `[["a","b"`, `[["a","\n"]]`, `[["a",nullx]]`, `[["a",nul]]`, `[["a","b"]] x`, `[[,"b"]]`, `null`, ``, `[`,
		"[[\"a\x01\",\"b\"]]", "[[\"\xff\",\"b\"]]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := plainHeaders[inbox.Header](text)
		if !ok {
			return
		}
		var pairs [][]*string
		if err := json.Unmarshal([]byte(text), &pairs); err != nil {
			t.Fatalf("%q was read as %q, but is no JSON: %v", text, got, err)
		}
		want := make([]inbox.Header, len(pairs))
		for i, pair := range pairs {
			if len(pair) != 2 || pair[0] == nil {
				t.Fatalf("%q was read as %q", text, got)
			}
			want[i].Name = *pair[0]
			if pair[1] != nil {
				want[i].Value = []byte(*pair[1])
			}
		}
		if !sameHeaders(got, want) {
			t.Fatalf("%q was read as %q, want %q", text, got, want)
		}
	})
}

// A trace context stands on every event: what it costs to write and read counts.
//
//nolint:paralleltest // It counts allocations of the whole process.
func TestPlainHeadersTakeAHandfulOfAllocations(t *testing.T) {
	headers := []inbox.Header{
		{Name: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		{Name: "tracestate", Value: []byte("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")},
		{Name: "content-type", Value: []byte("application/json")},
	}
	var text string
	if n := testing.AllocsPerRun(100, func() { text, _ = headersText(headers) }); n > 2 {
		t.Errorf("%v allocations to write %d headers, want at most 2", n, len(headers))
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = parseHeaders[inbox.Header](text) }); n > 2 {
		t.Errorf("%v allocations to read %d headers, want at most 2", n, len(headers))
	}
}
