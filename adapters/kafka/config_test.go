package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/inbox"
)

func required() ConsumerConfig {
	return ConsumerConfig{Brokers: []string{"localhost:9092"}, Group: "billing", Topics: []string{"orders"}}
}

func TestZeroValuesWork(t *testing.T) {
	t.Parallel()
	if err := required().withDefaults().validate(); err != nil {
		t.Error(err)
	}
	short := required()
	short.SessionTimeout, short.RebalanceTimeout = 600*time.Millisecond, time.Second
	if err := short.withDefaults().validate(); err != nil {
		t.Errorf("a short session: %v", err)
	}
}

// It is an inbox that was never made, in a Processor that is not nil.
func TestNilInboxIsReported(t *testing.T) {
	t.Parallel()
	err := Consume(t.Context(), required(), (*inbox.Inbox[struct{}])(nil))
	if err == nil || !strings.Contains(err.Error(), "the inbox can't start") || !strings.Contains(err.Error(), "make it with inbox.New") {
		t.Errorf("error is %v", err)
	}
}

func TestBadConfigNamesTheField(t *testing.T) {
	t.Parallel()
	for field, spoil := range map[string]func(*ConsumerConfig){
		"Brokers is empty":         func(c *ConsumerConfig) { c.Brokers = nil },
		`Brokers[0] "localhost"`:   func(c *ConsumerConfig) { c.Brokers = []string{"localhost"} },
		`Brokers[1] "a:1,b:2"`:     func(c *ConsumerConfig) { c.Brokers = []string{"a:1", "a:1,b:2"} },
		"Group is empty":           func(c *ConsumerConfig) { c.Group = "" },
		"Topics is empty":          func(c *ConsumerConfig) { c.Topics = nil },
		"Topics[1] is empty":       func(c *ConsumerConfig) { c.Topics = []string{"a", ""} },
		`Topics names "a" twice`:   func(c *ConsumerConfig) { c.Topics = []string{"a", "a"} },
		"StartAt is 7":             func(c *ConsumerConfig) { c.StartAt = 7 },
		"Isolation is 7":           func(c *ConsumerConfig) { c.Isolation = 7 },
		"KeyParallelism is -1":     func(c *ConsumerConfig) { c.KeyParallelism = -1 },
		"FetchMaxBytes is 5":       func(c *ConsumerConfig) { c.FetchMaxBytes = 5 },
		"BufferBytes is -1":        func(c *ConsumerConfig) { c.BufferBytes = -1 },
		"FetchMaxWait is -1ms":     func(c *ConsumerConfig) { c.FetchMaxWait = -time.Millisecond },
		"SessionTimeout is 1ns":    func(c *ConsumerConfig) { c.SessionTimeout, c.HeartbeatInterval = 1, 1 },
		"RebalanceTimeout is -1s":  func(c *ConsumerConfig) { c.RebalanceTimeout, c.DrainTimeout = -time.Second, 1 },
		"HeartbeatInterval is 20s": func(c *ConsumerConfig) { c.HeartbeatInterval = 20 * time.Second },
		"DrainTimeout is 1h0m0s":   func(c *ConsumerConfig) { c.DrainTimeout = time.Hour },
		"StalledAfter is -1s":      func(c *ConsumerConfig) { c.StalledAfter = -time.Second },
	} {
		config := required()
		spoil(&config)
		err := config.withDefaults().validate()
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("want %q, got %v", field, err)
		}
	}
}
