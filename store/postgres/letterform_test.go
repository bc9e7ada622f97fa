package postgres

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
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
		back, err := parseHeaders(text)
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
		if back, err := parseHeaders(text); err != nil || !sameHeaders(back, headers) {
			t.Fatalf("%s came back as %q, error %v", text, back, err)
		}
	})
}

func TestForeignHeadersColumnIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, `[["a"]]`, `[["a","b","c"]]`, `[["a",7]]`, `[[{"base64":"!"},"b"]]`, `nonsense`} {
		if got, err := parseHeaders(text); err == nil {
			t.Errorf("%s was read as %q", text, got)
		}
	}
}

func TestErrorTextFitsATextColumn(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "plain é", "nul \x00", "\xff\xfe",
		strings.Repeat("é", maxErrorBytes), strings.Repeat("x", maxErrorBytes), strings.Repeat("x", maxErrorBytes+1),
	} {
		got := errorText(text)
		if !utf8.ValidString(got) || strings.Contains(got, "\x00") || len(got) > maxErrorBytes+len("\ufffd") {
			t.Errorf("%.20q became %d bytes, %.20q", text, len(got), got)
		}
		if cut := len(text) > maxErrorBytes; cut != strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes end in %q", len(text), got[max(0, len(got)-8):])
		}
	}
}

func TestTimeThatNoCalendarShowsIsMovedIntoIt(t *testing.T) {
	t.Parallel()
	for want, at := range map[string]time.Time{
		"9999-12-31 23:59:59Z":        time.UnixMilli(1 << 60),
		"0001-01-01 00:00:00Z":        time.UnixMilli(-1 << 60),
		"2026-03-01 11:00:00.000001Z": time.Date(2026, 3, 1, 12, 0, 0, 1999, time.FixedZone("", 3600)),
	} {
		if got := timeArg(at); got != want {
			t.Errorf("%v is sent as %v, want %v", at, got, want)
		}
	}
	if got := timeArg(time.Time{}); got != nil {
		t.Errorf("the zero time is sent as %v", got)
	}
}
