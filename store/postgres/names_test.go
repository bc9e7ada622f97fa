package postgres

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	isSQL    = regexp.MustCompile(`(?s)\b(SELECT|INSERT INTO|DELETE FROM|UPDATE|VALUES)\b.*|extract\(`)
	function = regexp.MustCompile(`[a-z_.]+\(`)
	interval = regexp.MustCompile(`(\S+) interval '`)
	operator = regexp.MustCompile(`^OPERATOR\(pg_catalog\.[-+*>]\)$`)
)

// TestStatementsNameWhatTheSearchPathCouldReplace reads the SQL in the source.
// coalesce, extract and unnest of several arrays are syntax, not names.
func TestStatementsNameWhatTheSearchPathCouldReplace(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(source, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || !isSQL.MatchString(literal.Value) || strings.HasPrefix(strings.TrimLeft(literal.Value, "`\n"), "CREATE") {
				return true
			}
			read++
			for _, name := range function.FindAllString(literal.Value, -1) {
				switch {
				case strings.HasPrefix(name, "pg_catalog."), name == "coalesce(", name == "extract(":
				case name == "unnest(" && strings.Contains(literal.Value, "unnest($1::text[], $2::text[]"):
				default:
					t.Errorf("%s: %s...) stands without pg_catalog", file, name)
				}
			}
			for _, found := range interval.FindAllStringSubmatch(literal.Value, -1) {
				if !operator.MatchString(found[1]) {
					t.Errorf("%s: %q finds its operator by the search path", file, found[0])
				}
			}
			if strings.Contains(literal.Value, ".slot % ") {
				t.Errorf("%s: the modulo of a slot, a smallint, finds its operator by the search path", file)
			}
			return true
		})
	}
	if read < 20 {
		t.Errorf("%d statements were found: the test no longer sees them", read)
	}
}
