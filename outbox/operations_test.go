package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// fakeOperations is the operators' part of a store. It records what it is asked.
type fakeOperations struct {
	outbox.OperatorStore

	dead  []int64 // numbers of dead letters
	asked []string
	err   error

	// again: what is redriven is dead again at once.
	again bool
	lists []outbox.Filter
}

func (s *fakeOperations) ask(format string, args ...any) error {
	s.asked = append(s.asked, fmt.Sprintf(format, args...))
	return s.err
}

func (s *fakeOperations) Relays(_ context.Context, limit int) ([]outbox.RelayStatus, error) {
	return []outbox.RelayStatus{{}}, s.ask("relays %d", limit)
}

func (s *fakeOperations) Holders(context.Context) ([]outbox.Holder, error) {
	return []outbox.Holder{{PID: 1}}, s.ask("holders")
}

func (s *fakeOperations) Replay(_ context.Context, relay string, from int64) error {
	return s.ask("replay %s %d", relay, from)
}

func (s *fakeOperations) FirstSince(context.Context, time.Time) (int64, error) {
	return 7, s.ask("first")
}

func (s *fakeOperations) Skip(_ context.Context, relay string, number int64) error {
	return s.ask("skip %s %d", relay, number)
}

func (s *fakeOperations) SetAside(_ context.Context, _ string, filter outbox.Filter) (list []outbox.AsideEvent, err error) {
	s.lists = append(s.lists, filter)
	for _, number := range s.dead {
		if number > filter.After && len(list) < filter.Limit {
			list = append(list, outbox.AsideEvent{Aside: outbox.Aside{Number: number, State: outbox.Dead}})
		}
	}
	return list, s.err
}

func (s *fakeOperations) act(doing, relay string, filter outbox.Filter) (int, error) {
	if !s.again {
		s.dead = slices.DeleteFunc(s.dead, func(n int64) bool { return slices.Contains(filter.Numbers, n) })
	}
	return len(filter.Numbers), s.ask("%s %s %d", doing, relay, len(filter.Numbers))
}

func (s *fakeOperations) Redrive(_ context.Context, relay string, filter outbox.Filter) (int, error) {
	return s.act("redrive", relay, filter)
}

func (s *fakeOperations) Discard(_ context.Context, relay string, filter outbox.Filter) (int, error) {
	return s.act("discard", relay, filter)
}

func (s *fakeOperations) ChangeLanes(_ context.Context, relay string, lanes int) error {
	return s.ask("lanes %s %d", relay, lanes)
}

func (s *fakeOperations) Remove(_ context.Context, relay string) error {
	return s.ask("remove %s", relay)
}

func manyDead(n int) *fakeOperations {
	s := &fakeOperations{}
	for i := range n {
		s.dead = append(s.dead, int64(i+1))
	}
	return s
}

// operations are all of them, each with arguments that work.
func operations(o *outbox.Operator, ctx context.Context) map[string]func(relay string) error { //nolint:revive // a table
	return map[string]func(string) error{
		"replay events 1":  func(r string) error { return o.ReplayFrom(ctx, r, -5) },
		"first":            func(r string) error { _, err := o.ReplaySince(ctx, r, time.Now()); return err },
		"skip events 3":    func(r string) error { return o.Skip(ctx, r, 3) },
		"redrive events 2": func(r string) error { _, err := o.Redrive(ctx, r, outbox.Filter{}, outbox.Apply); return err },
		"discard events 2": func(r string) error { _, err := o.Discard(ctx, r, outbox.Filter{}, outbox.Apply); return err },
		"lanes events 8":   func(r string) error { return o.ChangeLanes(ctx, r, 8) },
		"remove events":    func(r string) error { return o.Remove(ctx, r) },
	}
}

func TestOperationsReachTheStoreAndItsErrorsTheCaller(t *testing.T) {
	t.Parallel()
	for asked := range operations(nil, nil) {
		s := manyDead(2)
		if err := operations(outbox.NewOperator(s), t.Context())[asked]("events"); err != nil || s.asked[0] != asked {
			t.Errorf("%s: %v, asked %q", asked, err, s.asked)
		}
		s = manyDead(2)
		s.err = outbox.ErrRunning
		if err := operations(outbox.NewOperator(s), t.Context())[asked]("events"); !errors.Is(err, outbox.ErrRunning) {
			t.Errorf("%s returned %v", asked, err)
		}
		if err := operations(outbox.NewOperator(s), t.Context())[asked]("no name"); err == nil || !strings.Contains(err.Error(), "relay name of 7 bytes") {
			t.Errorf("%s of no relay returned %v", asked, err)
		}
		if err := operations(outbox.NewOperator(nil), t.Context())[asked]("events"); err == nil || !strings.Contains(err.Error(), "NewOperator") {
			t.Errorf("%s without a store returned %v", asked, err)
		}
	}
}

func TestStatusAndHoldersAreTheStores(t *testing.T) {
	t.Parallel()
	s := &fakeOperations{}
	o := outbox.NewOperator(s)
	if status, err := o.Status(t.Context()); err != nil || len(status) != 1 {
		t.Errorf("%v, %v", status, err)
	}
	if holders, err := o.Holders(t.Context()); err != nil || len(holders) != 1 {
		t.Errorf("%v, %v", holders, err)
	}
	if !slices.Equal(s.asked, []string{"relays 10000", "holders"}) {
		t.Errorf("asked %q", s.asked)
	}
}

func TestReplaySinceBeginsWithTheFirstEvent(t *testing.T) {
	t.Parallel()
	s := &fakeOperations{}
	if n, err := outbox.NewOperator(s).ReplaySince(t.Context(), "events", time.Now()); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if !slices.Equal(s.asked, []string{"first", "replay events 7"}) {
		t.Errorf("asked %q", s.asked)
	}
}

func TestBadArgumentsOfOperationsAreRefused(t *testing.T) {
	t.Parallel()
	s := manyDead(1)
	o, ctx := outbox.NewOperator(s), t.Context()
	list := func(f outbox.Filter) error { _, err := o.SetAside(ctx, "events", f); return err }
	redrive := func(f outbox.Filter) error { _, err := o.Redrive(ctx, "events", f, outbox.Apply); return err }
	for want, err := range map[string]error{
		"event number is 0":      o.Skip(ctx, "events", 0),
		"lanes is 0":             o.ChangeLanes(ctx, "events", 0),
		"lanes is 1025":          o.ChangeLanes(ctx, "events", 1025),
		"Filter.Limit is -1":     list(outbox.Filter{Limit: -1}),
		`Filter.State is "gone"`: list(outbox.Filter{State: "gone"}),
		"only events that are":   redrive(outbox.Filter{State: outbox.Behind}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if len(s.asked) != 0 || len(s.lists) != 0 {
		t.Errorf("the store was asked %q", s.asked)
	}
}

func TestRedriveAndDiscardGoPageByPage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit, want int
		asked       []string
	}{
		{0, 2500, []string{"redrive events 1000", "redrive events 1000", "redrive events 500"}},
		{1200, 1200, []string{"redrive events 1000", "redrive events 200"}},
	} {
		for _, again := range []bool{false, true} {
			s := manyDead(2500)
			s.again = again
			o := outbox.NewOperator(s)
			if n, err := o.Redrive(t.Context(), "events", outbox.Filter{Limit: c.limit}, outbox.DryRun); n != c.want || err != nil || len(s.asked) != 0 {
				t.Errorf("limit %d, dry run: %d, %v, asked %q", c.limit, n, err, s.asked)
			}
			if n, err := o.Redrive(t.Context(), "events", outbox.Filter{Limit: c.limit}, outbox.Apply); n != c.want || err != nil || !slices.Equal(s.asked, c.asked) {
				t.Errorf("limit %d: %d, %v, asked %q", c.limit, n, err, s.asked)
			}
			for _, filter := range s.lists {
				if !filter.Brief || filter.State != outbox.Dead {
					t.Errorf("listed by %+v", filter)
				}
			}
		}
	}
	s := manyDead(3)
	if n, err := outbox.NewOperator(s).Discard(t.Context(), "events", outbox.Filter{}, outbox.Apply); n != 3 || err != nil || len(s.dead) != 0 {
		t.Errorf("discard: %d, %v", n, err)
	}
}

func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	s := manyDead(1500)
	list, err := outbox.NewOperator(s).SetAside(t.Context(), "events", outbox.Filter{})
	if len(list) != 1000 || err != nil {
		t.Errorf("%d events, %v", len(list), err)
	}
}
