package main

import (
	"fmt"
	"io"
	"time"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/figure"
)

func printTable(w io.Writer, title string, connections int, result contest.Result, costs map[string]cost) {
	fmt.Fprintf(w, "\n%s, connections: %d\n%-26s %9s  %-24s %10s %10s %10s %10s %11s\n",
		title, connections, "", "msg/s", "ratio (min … max)", "stmts/msg", "trips/msg", "CPU µs/msg", "allocs/msg", "heap B/msg")
	for _, name := range result.Sides() {
		ratio := result.Ratio(name, handOne.name)
		spent := result.PerMessage(name)
		fmt.Fprintf(w, "%-26s %9.0f  %-24s %10.2f %10.2f %10.1f %10.1f %11.0f\n", name, result.Rate(name).Median,
			fmt.Sprintf("%5.2f (%.2f … %.2f)", ratio.Median, ratio.Min, ratio.Max),
			costs[name].statements, costs[name].roundTrips, micros(spent.CPU), spent.Allocs, spent.Bytes)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// addFigures adds the ratios of one contest. Targets of a variant are our own.
func addFigures(figures *figure.Figures, suffix string, connections int, result contest.Result) {
	name := func(what string) string { return fmt.Sprintf("inbox-%s-%dconn%s", what, connections, suffix) }
	targetOne := targetOneAlone
	if connections > 1 {
		targetOne = targetOneBusy
	}
	add := figures.Ratio
	if suffix != "" {
		add = figures.OwnRatio
	}
	add(name("one"), result.Ratio(ourOne.name, handOne.name), targetOne)
	add(name("batch"), result.Ratio(ourBatch.name, handOne.name), targetBatch)
	add(name("bulk"), result.Ratio(ourBulk.name, handOne.name), targetBulk)
}

// addWeight adds what the library itself weighs: against the same batches
// written by hand and, at one connection, in allocations and round trips.
func addWeight(figures *figure.Figures, connections int, result contest.Result, costs map[string]cost) {
	figures.OwnRatio(fmt.Sprintf("inbox-batch-vs-batch-%dconn", connections), result.Ratio(ourBatch.name, handBatch.name), targetSameBatch)
	figures.OwnRatio(fmt.Sprintf("inbox-bulk-vs-bulk-%dconn", connections), result.Ratio(ourBulk.name, handBulk.name), targetSameBatch)
	if connections > 1 {
		return
	}
	for _, pair := range []struct {
		what         string
		ours, theirs side
	}{{"one", ourOne, handOne}, {"batch", ourBatch, handBatch}, {"bulk", ourBulk, handBulk}} {
		ours, theirs := result.PerMessage(pair.ours.name), result.PerMessage(pair.theirs.name)
		figures.OwnAtMost("inbox-"+pair.what+"-allocs", ours.Allocs, targetAllocs*theirs.Allocs)
		figures.OwnAtMost("inbox-"+pair.what+"-roundtrips", costs[pair.ours.name].roundTrips, costs[pair.theirs.name].roundTrips)
	}
}
