package figure_test

import (
	"os"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/figure"
)

func ExampleFigures() {
	var figures figure.Figures
	figures.Ratio("inbox-one-1conn", contest.Spread{Min: 1.21, Median: 1.298, Max: 1.5}, 1.3)
	figures.AtMost("kafka-rss", 61.5, 100)
	figures.OwnRatio("inbox-batch-vs-batch", contest.Spread{Min: 0.8, Median: 0.95, Max: 1.1}, 0.9)
	figures.OwnAtMost("inbox-one-allocs", 61.4, 62.3)
	if err := figures.Print(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// 1 of 2 targets reached
	// 2 of 2 targets of our own reached
	//
	// bench inbox-one-1conn ratio=1.30 min=1.21 max=1.50 target=1.3
	// bench kafka-rss value=61.50 target=<=100
	// bench inbox-batch-vs-batch ratio=0.95 min=0.80 max=1.10 target=0.9
	// bench inbox-one-allocs value=61.40 target=<=62.3
}
