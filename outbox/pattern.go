package outbox

import (
	"errors"
	"fmt"
	"strings"
)

// pattern is a topic in which each * stands for any number of any characters.
type pattern string

func (p pattern) matches(topic string) bool {
	first, rest, hasStar := strings.Cut(string(p), "*")
	if !hasStar {
		return topic == first
	}
	topic, ok := strings.CutPrefix(topic, first)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(topic, part)
		}
		// The leftmost place leaves the most to what follows.
		at := strings.Index(topic, part)
		if at < 0 {
			return false
		}
		topic, rest = topic[at+len(part):], after
	}
}

// validatePatterns returns what is wrong with the patterns of a field.
func validatePatterns(field string, patterns []string) error {
	var problems []error
	for i, p := range patterns {
		switch {
		case p == "":
			problems = append(problems, fmt.Errorf("outbox: %s[%d] is empty: name a topic, or a pattern such as %q", field, i, "orders.*"))
		case textProblem(p) != "":
			problems = append(problems, fmt.Errorf("outbox: %s[%d] of %d bytes %s: no topic can match it", field, i, len(p), textProblem(p)))
		}
	}
	return errors.Join(problems...)
}
