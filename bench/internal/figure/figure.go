// Package figure prints what a benchmark found: a table for people, then one
// line a figure for programs.
//
//	bench NAME ratio=MEDIAN min=… max=… target=T
//	bench NAME value=V target=<=T
//
// A plain target is reached by the median (or value) at or above it, "<=" by
// one at or below it.
package figure

import (
	"fmt"
	"io"

	"github.com/onceward/onceward/bench/internal/contest"
)

// Figures collects lines in the order they were found.
type Figures struct{ lines []line }

type line struct {
	text    string
	reached bool
}

// Ratio adds a figure that is better the higher it is.
func (f *Figures) Ratio(name string, ratio contest.Spread, target float64) {
	f.lines = append(f.lines, line{
		text:    fmt.Sprintf("bench %s ratio=%.2f min=%.2f max=%.2f target=%g", name, ratio.Median, ratio.Min, ratio.Max, target),
		reached: ratio.Median >= target,
	})
}

// AtMost adds a figure that is better the lower it is.
func (f *Figures) AtMost(name string, value, target float64) {
	f.lines = append(f.lines, line{
		text:    fmt.Sprintf("bench %s value=%.2f target=<=%.4g", name, value, target),
		reached: value <= target,
	})
}

// Print writes how many targets were reached, then the lines.
func (f *Figures) Print(w io.Writer) error {
	reached := 0
	for _, l := range f.lines {
		if l.reached {
			reached++
		}
	}
	if _, err := fmt.Fprintf(w, "\n%d of %d targets reached\n\n", reached, len(f.lines)); err != nil {
		return err
	}
	for _, l := range f.lines {
		if _, err := fmt.Fprintln(w, l.text); err != nil {
			return err
		}
	}
	return nil
}
