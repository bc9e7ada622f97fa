package outbox

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause after the n-th failure, with full jitter, so that relays
// that failed together do not come back together.
func (c RelayConfig) backoff(n int) time.Duration {
	ceiling := c.BackoffMin
	for i := 1; i < n && ceiling < c.BackoffMax; i++ {
		ceiling *= 2 // cannot overflow: the loop ends above BackoffMax
	}
	return rand.N(min(ceiling, c.BackoffMax)) + 1
}
