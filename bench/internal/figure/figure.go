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
	text         string
	reached, own bool
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

// OwnRatio is Ratio with a target that nobody asked for but ourselves: it does not
// count among those that were.
func (f *Figures) OwnRatio(name string, ratio contest.Spread, target float64) {
	f.Ratio(name, ratio, target)
	f.lines[len(f.lines)-1].own = true
}

// OwnAtMost is AtMost with a target of our own.
func (f *Figures) OwnAtMost(name string, value, target float64) {
	f.AtMost(name, value, target)
	f.lines[len(f.lines)-1].own = true
}

// Print writes how many targets were reached, then the lines.
func (f *Figures) Print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "\n%s%s\n", f.count("targets", false), f.count("targets of our own", true)); err != nil {
		return err
	}
	for _, l := range f.lines {
		if _, err := fmt.Fprintln(w, l.text); err != nil {
			return err
		}
	}
	return nil
}

// count says how many targets of a kind were reached; nothing, if there are none.
func (f *Figures) count(kind string, own bool) string {
	all, reached := 0, 0
	for _, l := range f.lines {
		if l.own != own {
			continue
		}
		all++
		if l.reached {
			reached++
		}
	}
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d %s reached\n", reached, all, kind)
}
