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
	if err := figures.Print(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// 1 of 2 targets reached
	//
	// bench inbox-one-1conn ratio=1.30 min=1.21 max=1.50 target=1.3
	// bench kafka-rss value=61.50 target=<=100
}
