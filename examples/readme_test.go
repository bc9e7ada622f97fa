package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const readme = "../README.md"

// Documents can't rot: what they show as Go is code that compiles here.
func TestDocumentsShowCodeThatCompiles(t *testing.T) {
	t.Parallel()
	sources := map[string]string{}
	for _, pattern := range []string{"*.go", "*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			sources[file] = read(t, file)
		}
	}
	shown := func(document string) [][]string {
		return regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, document), -1)
	}
	blocks := shown(readme)
	for _, document := range []string{readme, "../docs/outbox.md"} {
		if len(shown(document)) == 0 {
			t.Fatalf("%s shows no Go code", document)
		}
		for _, block := range shown(document) {
			if !containedIn(sources, block[1]) {
				t.Errorf("no file under examples/ contains this block of %s:\n%s", document, block[1])
			}
		}
	}
	if service := blocks[0][1]; !strings.Contains(read(t, "kafka-postgres/main.go"), service) || strings.Count(service, "\n") > 20 {
		t.Errorf("the first block of README.md is not the core of kafka-postgres in at most 20 lines:\n%s", service)
	}
}

func TestReadmeLinksToFilesThatExist(t *testing.T) {
	t.Parallel()
	for _, link := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(read(t, readme), -1) {
		if strings.Contains(link[1], "://") {
			continue
		}
		if _, err := os.Stat(filepath.Join("..", link[1])); err != nil {
			t.Errorf("README.md links to %s: %v", link[1], err)
		}
	}
}

// containedIn looks for block in the sources, whatever its indentation there.
func containedIn(sources map[string]string, block string) bool {
	for _, source := range sources {
		if strings.Contains(outdented(source), outdented(block)) {
			return true
		}
	}
	return false
}

func outdented(code string) string {
	lines := strings.Split(code, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimLeft(line, "\t")
	}
	return strings.Join(lines, "\n")
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
