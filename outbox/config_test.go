package outbox_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func TestBadConfigurationIsRefusedByField(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(c *outbox.RelayConfig){
		"Name of 0 bytes":    func(c *outbox.RelayConfig) { c.Name = "" },
		"Name of 3 bytes":    func(c *outbox.RelayConfig) { c.Name = "a b" },
		"Name of 101 bytes":  func(c *outbox.RelayConfig) { c.Name = strings.Repeat("a", 101) },
		"Topics[0] is empty": func(c *outbox.RelayConfig) { c.Topics = []string{""} },
		"Topics[0] of 513":   func(c *outbox.RelayConfig) { c.Topics = []string{strings.Repeat("a", 513)} },
		"Policy is":          func(c *outbox.RelayConfig) { c.Policy = "park" },
		"Lanes is -1":        func(c *outbox.RelayConfig) { c.Lanes = -1 },
		"Lanes is 1025":      func(c *outbox.RelayConfig) { c.Lanes = 1025 },
		"MaxAttempts is -1":  func(c *outbox.RelayConfig) { c.MaxAttempts = -1 },
		"Batch is -1":        func(c *outbox.RelayConfig) { c.Batch = -1 },
		"BatchBytes is -1":   func(c *outbox.RelayConfig) { c.BatchBytes = -1 },
		"BackoffMin is 1":    func(c *outbox.RelayConfig) { c.BackoffMin = 100 },
		"BackoffMax is 1s":   func(c *outbox.RelayConfig) { c.BackoffMin, c.BackoffMax = 2*time.Second, time.Second },
		"Lease is 30ns":      func(c *outbox.RelayConfig) { c.Lease = 30 },
		"Poll is 1ns":        func(c *outbox.RelayConfig) { c.Poll = 1 },
		"PublishTimeout is":  func(c *outbox.RelayConfig) { c.PublishTimeout = -time.Second },
		"StopTimeout is":     func(c *outbox.RelayConfig) { c.StopTimeout = 10 },
		"Retention is 24ns":  func(c *outbox.RelayConfig) { c.Retention = 24 },
		"AbandonAfter is 1s": func(c *outbox.RelayConfig) { c.AbandonAfter = time.Second },
	} {
		config := outbox.RelayConfig{Name: "events"}
		change(&config)
		r := outbox.NewRelay(newFakeStore(), &fakeBroker{}, config)
		for doing, err := range map[string]error{"Check": r.Check(t.Context()), "Run": r.Run(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s returned %v, want %q", doing, err, want)
			}
		}
	}
}

func TestRelayWithoutStoreOrPublisherIsRefused(t *testing.T) {
	t.Parallel()
	var none *outbox.Relay
	for want, r := range map[string]*outbox.Relay{
		"store is nil":     outbox.NewRelay(nil, &fakeBroker{}, outbox.RelayConfig{Name: "events"}),
		"publisher is nil": outbox.NewRelay(newFakeStore(), nil, outbox.RelayConfig{Name: "events"}),
		"NewRelay":         none,
		"nil or empty":     {},
	} {
		r.Wake()
		_ = r.Stats()
		for doing, err := range map[string]error{"Check": r.Check(t.Context()), "Run": r.Run(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s returned %v, want %q", doing, err, want)
			}
		}
	}
}

func TestExtremeConfigurationWorks(t *testing.T) {
	simulate(t, func(f *fixture) {
		var ids []string
		for _, key := range "abcdef" {
			for n := range 5 {
				ids = append(ids, string(key)+string(rune('0'+n)))
			}
		}
		f.append(ids...)
		i := f.run(func(c *outbox.RelayConfig) {
			c.Lanes, c.Batch, c.BatchBytes, c.MaxAttempts = 1024, 1, 1, math.MaxInt
			c.Lease, c.Poll = time.Second, time.Millisecond
		})
		f.pass(200 * time.Millisecond)
		f.wantSent(ids...)
		i.stop()
	})
}

func TestTopicsAreRecordedSortedAndOnce(t *testing.T) {
	simulate(t, func(f *fixture) {
		i := f.run(func(c *outbox.RelayConfig) { c.Topics = []string{"b", "a", "b"} })
		f.pass(time.Second)
		if got := strings.Join(f.store.relays["events"].Topics, " "); got != "a b" {
			f.Errorf("topics %q", got)
		}
		i.stop()
	})
}
