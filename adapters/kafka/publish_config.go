package kafka

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

// PublisherConfig says where to publish and how. Brokers is required; every
// other zero value is a default that works.
type PublisherConfig struct {
	// Brokers are "host:port" addresses to start from; the rest of the cluster
	// is discovered.
	Brokers []string

	// TLS turns on TLS. Nil: plain text.
	TLS *tls.Config

	// SASL is the authentication, from kafka-go's packages sasl/plain and
	// sasl/scram. Nil: none.
	SASL sasl.Mechanism

	// MaxBatchBytes is how much goes into one record batch, before compression.
	// A topic takes batches up to its max.message.bytes; where that is less,
	// the publisher finds out and makes smaller ones. An event that is larger
	// goes alone, and the broker decides. Zero: 1 MiB, 12 bytes below the
	// broker's default.
	MaxBatchBytes int

	// Compression of batches. Zero: none.
	Compression kafka.Compression

	// Logger gets what nobody asked for: partitions that were added, batches
	// that a topic doesn't take. Failed events are in the results of Publish.
	// Nil: slog.Default().
	Logger *slog.Logger
}

const (
	defaultMaxBatchBytes = 1 << 20
	minMaxBatchBytes     = 1 << 10
	maxMaxBatchBytes     = requestBytes
)

func (c PublisherConfig) withDefaults() PublisherConfig {
	setDefault(&c.MaxBatchBytes, defaultMaxBatchBytes)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c PublisherConfig) connection() connection {
	return connection{brokers: c.Brokers, tls: c.TLS, sasl: c.SASL}
}

// validate checks a config that has its defaults. Every error names the field
// and the fix.
func (c PublisherConfig) validate() error {
	if err := c.connection().validate(); err != nil {
		return err
	}
	if c.MaxBatchBytes < minMaxBatchBytes || c.MaxBatchBytes > maxMaxBatchBytes {
		return fmt.Errorf("kafka: MaxBatchBytes is %d: use 1 KiB to 32 MiB, or 0 for 1 MiB", c.MaxBatchBytes)
	}
	if c.Compression != 0 && c.Compression.Codec() == nil {
		return fmt.Errorf("kafka: Compression is %d: use kafka-go's Gzip, Snappy, Lz4 or Zstd, or 0 for none", c.Compression)
	}
	return nil
}
