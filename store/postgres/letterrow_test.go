package postgres

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/inbox"
)

func TestAnyTextBecomesStorable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 100_000)
	for text, want := range map[string]string{
		"": "", "plain é": "plain é", long: long, "nul \x00": "nul \ufffd", "\xff\xfe, \xed\xa0\x80": "\ufffd, \ufffd",
	} {
		if got := storable(text); got != want || !utf8.ValidString(got) {
			t.Errorf("%.20q became %.20q", text, got)
		}
	}
}

func TestLettersGoTogetherUntilTheyAreMany(t *testing.T) {
	t.Parallel()
	large := inbox.DeadLetter{Message: inbox.Message{Payload: bytes.Repeat([]byte("x"), maxStatementPayload)}}
	for want, letters := range map[int][]inbox.DeadLetter{
		maxStatementLetters:     make([]inbox.DeadLetter, maxStatementLetters+1),
		maxStatementLetters - 1: make([]inbox.DeadLetter, maxStatementLetters-1),
		1:                       {large, large},
		2:                       {large, {}},
		3:                       {{}, {}, large, large},
	} {
		if got := together(letters); got != want {
			t.Errorf("of %d letters %d go together, want %d", len(letters), got, want)
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
