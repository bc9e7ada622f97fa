package outbox_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

func TestRoutesByPattern(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"orders", []string{"orders"}, []string{"order", "orders.eu", "Orders", ""}},
		{"*", []string{"orders", "", "*"}, nil},
		{"orders.*", []string{"orders.", "orders.eu", "orders.eu.new"}, []string{"orders", "xorders.eu"}},
		{"*.eu", []string{".eu", "a.eu", "a.eu.eu"}, []string{"eu", "a.eux"}},
		{"a*b*c", []string{"abc", "aXbYc", "abbcc", "abcbc"}, []string{"ac", "acb", "abcd"}},
		{"a**a", []string{"aa", "aXa"}, []string{"a"}},
		{"aa*aa", []string{"aaaa"}, []string{"aaa"}},
		{"[a]?", []string{"[a]?"}, []string{"a", "ax"}},
	} {
		match := &fakeBroker{}
		routes := outbox.Routes(outbox.Route{Topics: []string{"never", c.pattern}, Publisher: match})
		for _, topic := range append(slices.Clone(c.yes), c.no...) {
			err := routes.Publish(t.Context(), []outbox.Event{{Message: outbox.Message{Topic: topic}}})[0]
			if want := slices.Contains(c.yes, topic); (err == nil) != want {
				t.Errorf("pattern %q, topic %q: %v", c.pattern, topic, err)
			}
		}
	}
}

func TestRoutesSplitACallAndKeepOrderAndResults(t *testing.T) {
	t.Parallel()
	orders, refunds := &fakeBroker{}, &fakeBroker{}
	// Each waits for the other: they are called at the same time.
	meet := make(chan struct{})
	orders.on = func(_ context.Context, e outbox.Event) error {
		if e.ID == "0" {
			meet <- struct{}{}
		}
		return nil
	}
	refunds.on = func(_ context.Context, e outbox.Event) error {
		if e.ID == "1" {
			select {
			case <-meet:
			case <-time.After(10 * time.Second):
				return errors.New("the other publisher is not called")
			}
		}
		if e.ID == "4" {
			return errRefused
		}
		return nil
	}
	routes := outbox.Routes(
		outbox.Route{Topics: []string{"orders.*"}, Publisher: orders},
		outbox.Route{Topics: []string{"refunds", "orders.eu"}, Publisher: refunds},
	)
	var events []outbox.Event
	for i, topic := range []string{"orders.eu", "refunds", "orders.us", "unknown", "refunds", "orders.eu"} {
		events = append(events, outbox.Event{Message: outbox.Message{ID: strconv.Itoa(i), Topic: topic}})
	}
	results := routes.Publish(t.Context(), events)
	for i, err := range results {
		switch {
		case i == 3 && (err == nil || !strings.Contains(err.Error(), `"unknown"`)),
			i == 4 && !errors.Is(err, errRefused),
			i != 3 && i != 4 && err != nil:
			t.Errorf("result %d is %v", i, err)
		}
	}
	if got := orders.ids(); !slices.Equal(got, []string{"0", "2", "5"}) {
		t.Errorf("to orders went %q", got)
	}
	if got := refunds.ids(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("to refunds went %q", got)
	}
}

// A destination that does not return leaves it open what it sent, and fails no other.
func TestRoutesKeepDestinationsApart(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		good, bad := &fakeBroker{}, &fakeBroker{whole: func(context.Context, []outbox.Event) []error { end(); return nil }}
		routes := outbox.Routes(outbox.Route{Topics: []string{"good"}, Publisher: good}, outbox.Route{Topics: []string{"bad"}, Publisher: bad})
		results := routes.Publish(t.Context(), []outbox.Event{{Message: outbox.Message{Topic: "bad"}}, {Message: outbox.Message{Topic: "good"}}})
		if !errors.Is(results[0], outbox.ErrUnavailable) || results[1] != nil {
			t.Errorf("%s: results are %v", name, results)
		}
	}
}

// misconfigured is a publisher that knows that it can't work.
type misconfigured struct{ fakeBroker }

func (*misconfigured) Validate() error { return errors.New("no brokers") }

func TestPublisherThatCannotWorkIsReportedByTheRelay(t *testing.T) {
	t.Parallel()
	r := outbox.NewRelay(newFakeStore(), &misconfigured{}, outbox.RelayConfig{Name: "events"})
	for doing, err := range map[string]error{"Check": r.Check(t.Context()), "Run": r.Run(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "no brokers") {
			t.Errorf("%s returned %v, want what the publisher said", doing, err)
		}
	}
}

func TestBadRoutesAreReportedByTheRelay(t *testing.T) {
	t.Parallel()
	for want, routes := range map[string]outbox.Publisher{
		"no routes":                outbox.Routes(),
		"Topics is empty":          outbox.Routes(outbox.Route{Publisher: &fakeBroker{}}),
		"Topics[1] is empty":       outbox.Routes(outbox.Route{Topics: []string{"a", ""}, Publisher: &fakeBroker{}}),
		"no brokers":               outbox.Routes(outbox.Route{Topics: []string{"a"}, Publisher: &misconfigured{}}),
		"route 1: Publisher is ni": outbox.Routes(outbox.Route{Topics: []string{"a"}, Publisher: &fakeBroker{}}, outbox.Route{Topics: []string{"b"}}),
	} {
		r := outbox.NewRelay(newFakeStore(), routes, outbox.RelayConfig{Name: "events"})
		for doing, err := range map[string]error{"Check": r.Check(t.Context()), "Run": r.Run(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s returned %v, want %q", doing, err, want)
			}
		}
		if err := routes.Publish(t.Context(), make([]outbox.Event, 1))[0]; !errors.Is(err, outbox.ErrUnavailable) {
			t.Errorf("Publish returned %v: a mistake in the configuration must not make dead letters", err)
		}
	}
}
