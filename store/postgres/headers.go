package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
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
	pairs := make([][2]headerText, len(headers))
	for i, h := range headers {
		pairs[i] = [2]headerText{headerText([]byte(header(h).Name)), header(h).Value}
	}
	text, err := plainJSON(pairs)
	return string(text), err
}

func parseHeaders[H ~header](text string) ([]H, error) {
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
