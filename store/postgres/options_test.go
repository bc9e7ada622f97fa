package postgres

import (
	"strings"
	"testing"
	"time"
)

func TestOptionThatCannotWorkIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		option Option
		names  string
	}{
		{WithSchema(""), "WithSchema"},
		{WithSchema(strings.Repeat("x", 64)), "63"},
		{WithSchema("a\x00"), "NUL"},
		{WithSchema("\xff"), "UTF-8"},
		{WithSchema("pg_onceward"), "pg_"},
		{WithClaimWait(0), "WithClaimWait"},
		{WithClaimWait(time.Microsecond), "1ms"},
		{WithClaimWait(1000 * time.Hour), "WithClaimWait"},
		{WithCommitDeadline(-1), "WithCommitDeadline"},
	} {
		if _, err := newSettings([]Option{c.option}); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want it to name %s", err, c.names)
		}
	}
	if _, err := newSettings(nil); err != nil {
		t.Error(err)
	}
}

func TestSchemaIsQuoted(t *testing.T) {
	t.Parallel()
	d := &Database[struct{}]{settings: settings{schema: `My "own"`}}
	if got, want := d.sql(`SELECT FROM {schema}.record`), `SELECT FROM "My ""own""".record`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
