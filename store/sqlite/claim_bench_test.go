package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/store/sqlite"
)

// BenchmarkAtomic claims, does nothing and commits, in batches of several sizes,
// from one goroutine and from eight.
func BenchmarkAtomic(b *testing.B) {
	for _, options := range []struct {
		name string
		list []sqlite.Option
	}{{"fsync", nil}, {"nofsync", []sqlite.Option{sqlite.WithoutFsync()}}} {
		for _, goroutines := range []int{1, 8} {
			for _, size := range []int{1, 100, 1000} {
				b.Run(fmt.Sprintf("%s/goroutines=%d/batch=%d", options.name, goroutines, size), func(b *testing.B) {
					benchmarkAtomic(b, goroutines, size, options.list)
				})
			}
		}
	}
}

func benchmarkAtomic(b *testing.B, goroutines, size int, options []sqlite.Option) {
	b.Helper()
	store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "store.db"), append(options, sqlite.WithClaimWait(time.Minute))...)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	work := func(context.Context, *sql.Tx, []idempotency.Verdict) error { return nil }
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	var next atomic.Int64
	for range goroutines {
		all.Go(func() {
			claims := make([]idempotency.Claim, size)
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				for i := range claims {
					claims[i] = idempotency.Claim{Scope: "billing/orders", Key: fmt.Sprintf("%09d-%d", n, i), Retention: time.Hour}
				}
				if err := store.Atomic(b.Context(), claims, work); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "claims/s")
}
