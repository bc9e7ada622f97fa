package contest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/onceward/onceward/bench/internal/contest"
)

// rounds returns a side that records its turns and takes the given times for 100 messages.
func rounds(name string, turns *[]string, times ...time.Duration) contest.Side {
	return contest.Side{Name: name, Run: func(_ context.Context, round int) (contest.Sample, error) {
		*turns = append(*turns, name)
		return contest.Sample{Messages: 100, Elapsed: times[round], CPU: time.Millisecond, Allocs: 300, Bytes: 5_000}, nil
	}}
}

func TestEveryOtherRoundRunsInTheOppositeOrder(t *testing.T) {
	t.Parallel()
	var turns []string
	_, err := contest.Run(t.Context(), 2,
		rounds("a", &turns, time.Second, time.Second, time.Second),
		rounds("b", &turns, time.Second, time.Second, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"b", "a", "a", "b", "b", "a"}; !slices.Equal(turns, want) {
		t.Errorf("turns were %v, want %v", turns, want)
	}
}

func TestRatiosPairSamplesOfOneRoundAndLeaveOutTheWarmUp(t *testing.T) {
	t.Parallel()
	var turns []string
	result, err := contest.Run(t.Context(), 3,
		rounds("ours", &turns, time.Hour, 1*time.Second, 2*time.Second, 1*time.Second),
		rounds("theirs", &turns, time.Second, 2*time.Second, 6*time.Second, 1*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := result.Ratio("ours", "theirs"), (contest.Spread{Min: 1, Median: 2, Max: 3}); got != want {
		t.Errorf("ratio is %v, want %v", got, want)
	}
	if got, want := result.PerMessage("ours"), (contest.PerMessage{CPU: 10 * time.Microsecond, Allocs: 3, Bytes: 50}); got != want {
		t.Errorf("a message cost %+v, want %+v", got, want)
	}
}

func TestASideThatDidNothingIsAnError(t *testing.T) {
	t.Parallel()
	idle := contest.Side{Name: "idle", Run: func(context.Context, int) (contest.Sample, error) {
		return contest.Measure(func() (int, error) { return 0, nil })
	}}
	if _, err := contest.Run(t.Context(), 1, idle); err == nil {
		t.Error("no error for a side that handled no messages")
	}
	broken := errors.New("broken")
	failing := contest.Side{Name: "failing", Run: func(context.Context, int) (contest.Sample, error) {
		return contest.Measure(func() (int, error) { return 1, broken })
	}}
	if _, err := contest.Run(t.Context(), 1, failing); !errors.Is(err, broken) {
		t.Errorf("error is %v, want one that wraps the side's own", err)
	}
}
