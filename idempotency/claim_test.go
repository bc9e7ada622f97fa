package idempotency

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestClaimNamesTheFieldThatCannotWork(t *testing.T) {
	t.Parallel()
	good := Claim{Scope: "billing/orders", Key: "1", Retention: time.Hour}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good claim: %v", err)
	}
	for field, spoil := range map[string]func(*Claim){
		"Claim.Scope":     func(c *Claim) { c.Scope = "" },
		"Claim.Key":       func(c *Claim) { c.Key = "" },
		"Claim.Retention": func(c *Claim) { c.Retention = 0 },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	long := good
	long.Retention = MaxRetention
	if err := long.Validate(); err != nil {
		t.Errorf("the longest retention: %v", err)
	}
	long.Retention++
	if err := long.Validate(); err == nil || !strings.Contains(err.Error(), "Claim.Retention") {
		t.Errorf("a longer retention: %v", err)
	}
}

func TestStoredFormStaysReadableWhereItCan(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "order-1", "Grüße", strings.Repeat("x", MaxStoredBytes), "sha256", "SHA256:1"} {
		if got := StoredForm(s); got != s {
			t.Errorf("%.20q became %q", s, got)
		}
	}
	for _, s := range []string{strings.Repeat("x", MaxStoredBytes+1), "\xff", "a\x00b", "sha256:", "sha256:" + strings.Repeat("0", 64)} {
		if got := StoredForm(s); !strings.HasPrefix(got, hashedPrefix) || got == s || len(got) != len(hashedPrefix)+64 {
			t.Errorf("%.20q became %q", s, got)
		}
	}
}

// Two inputs never share a form, and every form is text that a column can hold.
func FuzzStoredForm(f *testing.F) {
	f.Add("a", "b")
	f.Add("a\x00", "a")
	f.Add("\xff", "\xfe")
	f.Add("sha256:0", StoredForm("\xff"))
	f.Add("\xff", StoredForm("\xff"))
	f.Fuzz(func(t *testing.T, a, b string) {
		form := StoredForm(a)
		if !utf8.ValidString(form) || strings.IndexByte(form, 0) >= 0 || len(form) > MaxStoredBytes {
			t.Errorf("%q became %q", a, form)
		}
		if (form == StoredForm(b)) != (a == b) {
			t.Errorf("%q and %q: forms %q and %q", a, b, form, StoredForm(b))
		}
	})
}
