package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Route sends the topics that match one of its patterns to a publisher.
type Route struct {
	// Topics are patterns in which each * stands for any number of any characters.
	Topics    []string
	Publisher Publisher
}

// Routes is a Publisher that gives each event to the publisher of the first
// route that matches its topic, and calls publishers that have events at the same
// time. Events with the same topic and key go the same way, so they stay in order. An
// event without a route fails, as an attempt. A route that cannot work is reported
// by Relay.Run and Relay.Check.
func Routes(routes ...Route) Publisher {
	r := &router{routes: routes}
	problems := make([]error, 0, len(routes)+1)
	if len(routes) == 0 {
		problems = append(problems, errors.New("outbox: Routes has no routes: pass at least one"))
	}
	for i, route := range routes {
		field := fmt.Sprintf("Routes: route %d: Topics", i)
		if len(route.Topics) == 0 {
			problems = append(problems, fmt.Errorf("outbox: %s is empty: name what goes there, or %q for all", field, "*"))
		}
		problems = append(problems, validatePatterns(field, route.Topics))
		if route.Publisher == nil {
			problems = append(problems, fmt.Errorf("outbox: Routes: route %d: Publisher is nil: pass one", i))
		}
		if v, ok := route.Publisher.(validator); ok {
			problems = append(problems, v.Validate())
		}
	}
	r.invalid = errors.Join(problems...)
	return r
}

type router struct {
	routes  []Route
	invalid error
}

// Validate returns what is wrong with the routes and their publishers.
func (r *router) Validate() error { return r.invalid }

const noRoute = -1

// route returns the index of the first route of a topic.
func (r *router) route(topic string) int {
	for i := range r.routes {
		for _, p := range r.routes[i].Topics {
			if pattern(p).matches(topic) {
				return i
			}
		}
	}
	return noRoute
}

// Publish implements Publisher.
func (r *router) Publish(ctx context.Context, events []Event) []error {
	if r.invalid != nil {
		return allFailed(len(events), fmt.Errorf("%w: %w", r.invalid, ErrUnavailable))
	}
	if len(events) == 0 {
		return nil
	}
	ways := make([]int, len(events))
	counts := make([]int, len(r.routes))
	unroutable := 0
	for i := range events {
		if i > 0 && events[i].Topic == events[i-1].Topic {
			ways[i] = ways[i-1]
		} else {
			ways[i] = r.route(events[i].Topic)
		}
		if ways[i] == noRoute {
			unroutable++
		} else {
			counts[ways[i]]++
		}
	}
	if counts[max(ways[0], 0)] == len(events) { // the usual case costs no copy
		return r.routes[ways[0]].Publisher.Publish(ctx, events)
	}
	results := make([]error, len(events))
	if unroutable > 0 {
		for i, way := range ways {
			if way == noRoute {
				results[i] = fmt.Errorf("outbox: topic %q matches no route: add one, or leave the topic out of RelayConfig.Topics", events[i].Topic)
			}
		}
	}
	var calls sync.WaitGroup
	for way, count := range counts {
		if count == 0 {
			continue
		}
		part, places := make([]Event, 0, count), make([]int, 0, count)
		for i := range events {
			if ways[i] == way {
				part, places = append(part, events[i]), append(places, i)
			}
		}
		calls.Go(func() {
			publishSafely(ctx, r.routes[way].Publisher, part, func(parts []error) {
				for i, err := range parts {
					results[places[i]] = err
				}
			})
		})
	}
	calls.Wait()
	return results
}
