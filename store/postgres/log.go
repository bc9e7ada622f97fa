package postgres

import (
	"sync"
	"sync/atomic"

	"github.com/onceward/onceward/outbox"
)

// outboxLog is what a process knows of the log.
type outboxLog struct {
	appended outbox.Signal
	// home: the log was written in this cluster, see restore.go.
	home   atomic.Bool
	floors floors
	// lanes by relay, as registered here.
	lanes sync.Map
}
