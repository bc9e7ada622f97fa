package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// headerText is a string of a header in the column headers: as it is if a
// person can read it there, else {"base64":"…"}. Null: a nil value.
type headerText []byte

type base64Text struct {
	Base64 []byte `json:"base64"`
}

func (h headerText) MarshalJSON() ([]byte, error) {
	if h == nil {
		return []byte("null"), nil
	}
	if utf8.Valid(h) && bytes.IndexByte(h, 0) < 0 {
		return plainJSON(string(h))
	}
	return json.Marshal(base64Text{h})
}

func (h *headerText) UnmarshalJSON(text []byte) error {
	var s string
	switch {
	case string(text) == "null":
		*h = nil
		return nil
	case len(text) > 0 && text[0] == '{':
		var encoded base64Text
		err := json.Unmarshal(text, &encoded)
		*h = encoded.Base64
		return err
	}
	err := json.Unmarshal(text, &s)
	*h = []byte(s)
	return err
}

// plainJSON leaves <, > and & readable.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// header is what inbox.Header and outbox.Header are made of.
type header = struct {
	Name  string
	Value []byte
}

// headersText is the text of the column headers.
func headersText[H ~header](headers []H) (string, error) {
	size := len("[]")
	for i := range headers {
		size += len(header(headers[i]).Name) + len(header(headers[i]).Value) + len(`["",""],`)
	}
	text := append(make([]byte, 0, size), '[')
	for i := range headers {
		h := header(headers[i])
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '[')
		var err error
		if text, err = appendText(text, h.Name, true); err != nil {
			return "", err
		}
		if text, err = appendText(append(text, ','), h.Value, h.Value != nil); err != nil {
			return "", err
		}
		text = append(text, ']')
	}
	return string(append(text, ']')), nil
}

// appendText adds a headerText. Almost all are as plain as those of a trace context,
// for which encoding/json takes ten times as long.
func appendText[S string | []byte](text []byte, value S, isThere bool) ([]byte, error) {
	before := len(text)
	text = append(append(append(text, '"'), value...), '"')
	if isThere && isPlain(text[before+1:len(text)-1]) {
		return text, nil
	}
	h := headerText(text[before+1 : len(text)-1])
	if !isThere {
		h = nil
	}
	written, err := plainJSON(h)
	return append(text[:before], written...), err
}

func isPlain(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func parseHeaders[H ~header](text string) ([]H, error) {
	if headers, ok := plainHeaders[H](text); ok {
		return headers, nil
	}
	var pairs [][]headerText
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return nil, err
	}
	headers := make([]H, len(pairs))
	for i, pair := range pairs {
		if len(pair) != 2 {
			return nil, errors.New("not a list of pairs")
		}
		headers[i] = H(header{Name: string(pair[0]), Value: pair[1]})
	}
	return headers, nil
}

// plainHeaders reads headers whose strings have no escapes and no base64. It reports
// false for all others, well-formed or not. A relay reads hundreds of thousands of rows a second,
// and a trace context makes headers of each: with encoding/json they took three times as long
// as all else.
func plainHeaders[H ~header](text string) ([]H, bool) {
	if !utf8.ValidString(text) {
		return nil, false
	}
	c := headerCursor{text: text, values: []byte(text)}
	headers := make([]H, 0, 4)
	c.expect('[')
	for more := !c.skip(']'); more; more = c.skip(',') {
		c.expect('[')
		from, to := c.plain()
		name := text[from:to]
		c.expect(',')
		var value []byte
		if !c.null() {
			from, to = c.plain()
			value = c.values[from:to:to]
		}
		c.expect(']')
		headers = append(headers, H(header{Name: name, Value: value}))
		if c.failed {
			return nil, false
		}
	}
	if len(headers) > 0 {
		c.expect(']')
	}
	c.space()
	return headers, !c.failed && c.at == len(text)
}

// headerCursor stands in a text. After a failure it does not move any more.
type headerCursor struct {
	text   string
	values []byte // the text again, for values, which are not strings
	at     int
	failed bool
}

func (c *headerCursor) space() {
	for c.at < len(c.text) && strings.IndexByte(" \t\n\r", c.text[c.at]) >= 0 {
		c.at++
	}
}

// skip reports whether the next token is this one, and passes it.
func (c *headerCursor) skip(token byte) bool {
	c.space()
	if c.failed || c.at == len(c.text) || c.text[c.at] != token {
		return false
	}
	c.at++
	return true
}

func (c *headerCursor) expect(token byte) {
	if !c.skip(token) {
		c.failed = true
	}
}

func (c *headerCursor) null() bool {
	c.space()
	if c.failed || !strings.HasPrefix(c.text[c.at:], "null") {
		return false
	}
	c.at += len("null")
	return true
}

// plain passes a string without escapes and returns where it stands.
func (c *headerCursor) plain() (from, to int) {
	c.expect('"')
	for from, to = c.at, c.at; !c.failed && to < len(c.text); to++ {
		switch b := c.text[to]; {
		case b == '"':
			c.at = to + 1
			return from, to
		case b == '\\' || b < ' ':
			c.failed = true
			return 0, 0
		}
	}
	c.failed = true
	return 0, 0
}
