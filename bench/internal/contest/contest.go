// Package contest runs competitors side by side, so that what the machine does
// meanwhile hits all of them.
//
// Every round runs each side once, and every other round runs them in the
// opposite order: A B, B A, A B, … A ratio is taken between two samples of the
// same round, never between a fast minute of one side and a slow minute of the
// other; what is reported is the median of these ratios with their extremes.
package contest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

// Side is one competitor.
type Side struct {
	Name string
	// Run does the work of one round and returns what Measure saw. Rounds
	// count from 0; round 0 warms up and is not reported.
	Run func(ctx context.Context, round int) (Sample, error)
}

// Sample is one side's share of one round.
type Sample struct {
	Messages int
	Elapsed  time.Duration
	// CPU is what the whole process spent meanwhile, Allocs and Bytes its heap
	// allocations. Unlike Elapsed they hardly depend on who else is at work.
	CPU           time.Duration
	Allocs, Bytes uint64
}

// Rate is in messages per second.
func (s Sample) Rate() float64 { return float64(s.Messages) / s.Elapsed.Seconds() }

// Measure times work, which returns how many messages it handled.
func Measure(work func() (messages int, err error)) (Sample, error) {
	// What the side before left behind is collected outside the clock.
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(), time.Now()
	messages, err := work()
	elapsed := time.Since(start)
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	return Sample{
		Messages: messages,
		Elapsed:  elapsed,
		CPU:      cpu,
		Allocs:   after.Mallocs - before.Mallocs,
		Bytes:    after.TotalAlloc - before.TotalAlloc,
	}, err
}

// cpuTime is what this process has spent so far, in user and kernel.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // not with these arguments
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Result holds the samples of every side, one for each reported round.
type Result struct {
	names   []string
	samples map[string][]Sample
}

// Run runs the sides for a warm-up round and then for the given rounds. In a CPU
// profile each side's samples carry its name: pprof -tagfocus='side=NAME'.
func Run(ctx context.Context, rounds int, sides ...Side) (Result, error) {
	result := Result{samples: make(map[string][]Sample)}
	for _, side := range sides {
		result.names = append(result.names, side.Name)
	}
	for round := range rounds + 1 {
		order := slices.Clone(sides)
		if round%2 == 0 {
			slices.Reverse(order)
		}
		for _, side := range order {
			var sample Sample
			var err error
			pprof.Do(ctx, pprof.Labels("side", side.Name), func(ctx context.Context) {
				sample, err = side.Run(ctx, round)
			})
			if err != nil {
				return Result{}, fmt.Errorf("%s, round %d: %w", side.Name, round, err)
			}
			if sample.Messages <= 0 || sample.Elapsed <= 0 {
				return Result{}, fmt.Errorf("%s, round %d: no messages were handled", side.Name, round)
			}
			if round > 0 {
				result.samples[side.Name] = append(result.samples[side.Name], sample)
			}
		}
	}
	return result, nil
}

// Sides returns the names in the order they were given.
func (r Result) Sides() []string { return r.names }

// Ratio compares the rates of two sides, round by round: above 1, ours is faster.
func (r Result) Ratio(ours, theirs string) Spread {
	a, b := r.side(ours), r.side(theirs)
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i].Rate() / b[i].Rate()
	}
	return spread(ratios)
}

// Rate is the spread of one side's messages per second.
func (r Result) Rate(name string) Spread {
	var rates []float64
	for _, s := range r.side(name) {
		rates = append(rates, s.Rate())
	}
	return spread(rates)
}

// PerMessage is what one message cost a side.
type PerMessage struct {
	CPU           time.Duration
	Allocs, Bytes float64
}

// PerMessage returns one side's costs, over all rounds.
func (r Result) PerMessage(name string) PerMessage {
	var sum Sample
	for _, s := range r.side(name) {
		sum.Messages += s.Messages
		sum.CPU += s.CPU
		sum.Allocs += s.Allocs
		sum.Bytes += s.Bytes
	}
	return PerMessage{
		CPU:    sum.CPU / time.Duration(sum.Messages),
		Allocs: float64(sum.Allocs) / float64(sum.Messages),
		Bytes:  float64(sum.Bytes) / float64(sum.Messages),
	}
}

func (r Result) side(name string) []Sample {
	samples, ok := r.samples[name]
	if !ok {
		panic(fmt.Sprintf("contest: no side %q", name))
	}
	return samples
}

// Spread is the middle and the ends of several values.
type Spread struct{ Min, Median, Max float64 }

func spread(values []float64) Spread {
	v := slices.Clone(values)
	slices.Sort(v)
	n := len(v)
	median := v[n/2]
	if n%2 == 0 {
		median = (v[n/2-1] + v[n/2]) / 2
	}
	return Spread{Min: v[0], Median: median, Max: v[n-1]}
}
