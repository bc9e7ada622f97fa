package outbox

import (
	"context"
	"errors"
	"fmt"
)

// Option sets one property of an Outbox. A value that cannot work is reported by
// Check and by every Publish.
type Option func(*options)

type options struct {
	maxBytes       int
	contextHeaders func(ctx context.Context) []Header
}

// defaultMaxBytes leaves Kafka's default limit for a message, 1,048,588 bytes, room
// for its framing.
const defaultMaxBytes = 1_000_000

// MaxBytes bounds key, payload and headers of a message together, where each header
// counts eight bytes more than its name and value have. Default 1,000,000, which fits
// Kafka's default limit, at most MaxEventBytes. An event that no broker takes would be a
// dead letter; refused here, it fails the transaction of whoever made it.
func MaxBytes(bytes int) Option {
	return func(o *options) { o.maxBytes = bytes }
}

// ContextHeaders adds headers to every message, made from the context of Publish:
// so a trace goes on behind the broker. Headers whose name the message has already
// are left out. Default none. It is called once for each Publish.
func ContextHeaders(headers func(ctx context.Context) []Header) Option {
	return func(o *options) { o.contextHeaders = headers }
}

func newOptions(list []Option) options {
	o := options{maxBytes: defaultMaxBytes}
	for _, option := range list {
		if option != nil {
			option(&o)
		}
	}
	return o
}

// validate reports every property that cannot work, each with its fix.
func (o *options) validate(hasStore bool) error {
	var problems []error
	if !hasStore {
		problems = append(problems, errors.New("outbox: store is nil: pass one, such as postgres.New(pool)"))
	}
	if o.maxBytes < 1 || o.maxBytes > MaxEventBytes {
		problems = append(problems, fmt.Errorf("outbox: MaxBytes(%d): pass how large a message may be, 1 to %d, such as %d",
			o.maxBytes, MaxEventBytes, defaultMaxBytes))
	}
	return errors.Join(problems...)
}
