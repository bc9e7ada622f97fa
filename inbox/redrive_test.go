package inbox_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

// dead sets messages aside and then mends the handler.
func (f *fixture) dead(ms ...inbox.Message) {
	f.Helper()
	f.on = func(context.Context, *fakeTx, inbox.Message) error { return inbox.Permanent(errHandler) }
	f.process(ms...)
	f.on = nil
	f.calls = nil
}

func (f *fixture) redrive(filter inbox.Filter, want inbox.RedriveResult) {
	f.Helper()
	got, err := f.inbox.Redrive(f.Context(), filter, inbox.Apply)
	if err != nil {
		f.Fatalf("Redrive: %v", err)
	}
	if got != want {
		f.Fatalf("redrive is %+v, want %+v", got, want)
	}
}

func TestRedriveHandlesAndRemovesLettersOldestFirst(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*testing.T, ...inbox.Option) *fixture{"each": setup, "bulk": setupBulk} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.dead(messages("a", "b", "c")...)
			f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 3, Redriven: 3})
			f.wantCalls("a", "b", "c")
			f.wantEffects("a", "b", "c")
			f.wantLetters()
			f.wantEvents(inbox.EventRedriven, 3)
			f.wantOutcomes(f.process(messages("a")...), "duplicate")
		})
	}
}

func TestRedriveKeepsToTheFilter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("a"), message(""), message("b"))
	f.redrive(inbox.Filter{Reason: inbox.ReasonPermanent, Limit: 1}, inbox.RedriveResult{Selected: 1, Redriven: 1})
	f.wantLetters(" missing_id", "b permanent")
}

func TestFailedRedriveKeepsTheLetterWithItsNewErrorAndGoesOn(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if m.ID == "a" {
			panic("still broken")
		}
		return nil
	}
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 1, Failed: 1})
	f.wantLetters("a permanent")
	if letter := f.store.letters[0]; letter.Attempts != 2 || letter.Error != "fake: work: handler panicked: still broken" {
		t.Errorf("dead letter is %+v", letter)
	}
}

func TestHandlerThatReturnsASentinelInARedriveHasFailed(t *testing.T) {
	t.Parallel()
	for _, sentinel := range []error{idempotency.ErrInProgress, idempotency.ErrConflict, inbox.ErrGone, inbox.ErrBehind} {
		f := setup(t)
		f.dead(message("a"))
		f.failOn(sentinel, "a")
		f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Failed: 1})
		f.wantLetters("a permanent")
	}
}

func TestFailedRedriveBlocksTheLaterLettersOfItsKey(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.dead(keyed("x:1", "x:2", "y:1", "x:3")...)
	f.failOn(errHandler, "x:1")
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 4, Redriven: 1, Failed: 1, Blocked: 2})
	f.wantCalls("x:1", "y:1")
	f.wantLetters("x:1 permanent", "x:2 behind", "x:3 behind")
	f.on = nil
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 3, Redriven: 3})
	f.wantOutcomes(f.process(keyed("x:4")...), "processed")
}

func TestRedriveOfALaterLetterIsBlockedByAnOlderOneOutsideTheFilter(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.dead(keyed("x:1", "x:2")...)
	f.redrive(inbox.Filter{Reason: inbox.ReasonBehind}, inbox.RedriveResult{Selected: 1, Blocked: 1})
	f.wantLetters("x:1 permanent", "x:2 behind")
}

func TestMessagesParkedWhileRedrivingAreRedrivenToo(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	f.dead(keyed("x:1")...)
	next := 2
	f.on = func(context.Context, *fakeTx, inbox.Message) error {
		if next <= 5 {
			id := fmt.Sprintf("x:%d", next)
			next++
			f.wantOutcomes(f.process(keyed(id)...), "parked")
		}
		return nil
	}
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 5, Redriven: 5})
	f.wantEffects("x:1", "x:2", "x:3", "x:4", "x:5")
	f.wantLetters()
}

func TestRedriveReadsPageByPageAndTriesEachLetterOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var ids []string
	for i := range 1100 {
		ids = append(ids, strconv.Itoa(i))
	}
	f.dead(messages(ids...)...)
	f.on = func(context.Context, *fakeTx, inbox.Message) error { return errHandler }
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1100, Failed: 1100})
	f.redrive(inbox.Filter{Limit: 1050}, inbox.RedriveResult{Selected: 1050, Failed: 1050})
}

func TestFailedRedriveIsLoggedAsOneWithItsNumber(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	f.failOn(errHandler, "b")
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 1, Failed: 1})
	log := f.logs.String()
	for _, want := range []string{
		`msg="inbox: redrive failed, the dead letter stays" consumer=billing message_id=b topic=orders position=orders/0/b dead_letter=2 `,
		`msg="inbox: dead letter redriven" consumer=billing message_id=a topic=orders position=orders/0/a dead_letter=1 `,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is missing in:\n%s", want, log)
		}
	}
	if strings.Contains(log, "it will be tried again") {
		t.Errorf("log is:\n%s", log)
	}
}

// The same payment sent twice without an ID is two letters, and no record tells
// that they are one.
func TestMessagesWithoutIDAreRedrivenOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		filter          inbox.Filter
		want, withoutID int
	}{
		"all":              {inbox.Filter{}, 2, 2},
		"by topic":         {inbox.Filter{Topic: "orders"}, 2, 2},
		"limited":          {inbox.Filter{Limit: 2}, 2, 2},
		"limited to one":   {inbox.Filter{Limit: 1}, 1, 2},
		"another reason":   {inbox.Filter{Reason: inbox.ReasonPermanent}, 2, 2},
		"by their reason":  {inbox.Filter{Reason: inbox.ReasonMissingID}, 2, 0},
		"by a number":      {inbox.Filter{Numbers: []int64{1}}, 1, 1},
		"by more numbers":  {inbox.Filter{Numbers: []int64{1, 2, 3}}, 3, 0},
		"by reason, limit": {inbox.Filter{Reason: inbox.ReasonMissingID, Limit: 1}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			first, second := message(""), message("")
			second.Position = "orders/0/2"
			f.dead(first, second, message("a"), message("b")) // letters 1 to 4
			f.wantLetters(" missing_id", " missing_id", "a permanent", "b permanent")
			dry, err := f.inbox.Redrive(t.Context(), c.filter, inbox.DryRun)
			if want := (inbox.RedriveResult{Selected: c.want}); err != nil || dry != want {
				t.Errorf("dry run is %+v, %v", dry, err)
			}
			f.redrive(c.filter, inbox.RedriveResult{Selected: c.want, Redriven: c.want})
			left, err := f.inbox.DeadLetters(t.Context(), inbox.Filter{Reason: inbox.ReasonMissingID})
			if err != nil || len(left) != c.withoutID {
				t.Errorf("%d letters without ID are left, %v", len(left), err)
			}
		})
	}
}

func TestWhatWaitsBehindAMessageWithoutIDIsBlocked(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.ParkKey())
	missing := keyed("x:1")[0]
	missing.ID = ""
	f.process(missing, keyed("x:2")[0])
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Blocked: 1})
	f.wantLetters(" missing_id", "x:2 behind")
	f.redrive(inbox.Filter{Numbers: []int64{1}}, inbox.RedriveResult{Selected: 1, Redriven: 1})
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 1, Redriven: 1})
}

func TestLetterThatSomebodyElseRemovedIsGone(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	f.on = func(ctx context.Context, _ *fakeTx, _ inbox.Message) error {
		_, err := f.inbox.Discard(ctx, inbox.Filter{MessageID: "b"}, inbox.Apply)
		return err
	}
	f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 1, Gone: 1})
}

func TestRedriveEndsWithTheStore(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b", "c")...)
	f.store.beginFaults = []error{nil, idempotency.ErrUnavailable}
	got, err := f.inbox.Redrive(t.Context(), inbox.Filter{}, inbox.Apply)
	wantError(t, err, idempotency.ErrUnavailable)
	if want := (inbox.RedriveResult{Selected: 2, Redriven: 1}); got != want {
		t.Errorf("redrive is %+v", got)
	}
	f.wantLetters("b permanent", "c permanent")
	f.store.listFaults = []error{idempotency.ErrUnavailable}
	_, err = f.inbox.Redrive(t.Context(), inbox.Filter{}, inbox.Apply)
	wantError(t, err, idempotency.ErrUnavailable)
}

func TestRedriveGoesOnAfterAConflictAndAHungHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, inbox.HandlerTimeout(time.Second))
		f.dead(messages("a", "b")...)
		f.store.commitFaults = []commitFault{{err: idempotency.ErrConflict}}
		hang := make(chan struct{})
		f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
			if m.ID == "a" {
				<-hang
			}
			return nil
		}
		f.redrive(inbox.Filter{}, inbox.RedriveResult{Selected: 2, Redriven: 1, Failed: 1})
		f.wantLetters("a permanent")
		f.wantEvents(inbox.EventAbandoned, 1)
		close(hang)
		synctest.Wait()
		f.wantEffects("b")
	})
}

// forgetfulStore is a store from before Filter.After.
type forgetfulStore struct{ *fakeStore }

func (s forgetfulStore) DeadLetters(ctx context.Context, consumer string, filter inbox.Filter) ([]inbox.DeadLetter, error) {
	filter.After = 0
	return s.fakeStore.DeadLetters(ctx, consumer, filter)
}

func TestRedriveDoesNotLoopOverAStoreThatIgnoresTheCursor(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("a"))
	in := inbox.New(forgetfulStore{f.store}, "billing", func(context.Context, *fakeTx, inbox.Message) error { return errHandler }, f.options(nil)...)
	result, err := in.Redrive(t.Context(), inbox.Filter{}, inbox.Apply)
	if err == nil || !strings.Contains(err.Error(), "Filter.After") || result.Failed != 1 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestDryRunOnlyCounts(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	result, err := f.inbox.Redrive(t.Context(), inbox.Filter{}, inbox.DryRun)
	if want := (inbox.RedriveResult{Selected: 2}); err != nil || result != want {
		t.Errorf("redrive: %+v, %v", result, err)
	}
	n, err := f.inbox.Discard(t.Context(), inbox.Filter{MessageID: "a"}, inbox.DryRun)
	if err != nil || n != 1 {
		t.Errorf("discard: %d, %v", n, err)
	}
	f.wantLetters("a permanent", "b permanent")
	f.wantCalls()
}

func TestNegativeLimitIsRefused(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("a"))
	bad := inbox.Filter{Limit: -1}
	_, list := f.inbox.DeadLetters(t.Context(), bad)
	_, redrive := f.inbox.Redrive(t.Context(), bad, inbox.Apply)
	_, discard := f.inbox.Discard(t.Context(), bad, inbox.Apply)
	_, count := f.inbox.Discard(t.Context(), bad, inbox.DryRun)
	for _, err := range []error{list, redrive, discard, count} {
		if err == nil || !strings.Contains(err.Error(), "Filter.Limit is -1") {
			t.Errorf("error is %v", err)
		}
	}
	f.wantLetters("a permanent")
}

func TestPayloadsAreReadOnlyWhereTheyAreUsed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(messages("a", "b")...)
	f.on = func(_ context.Context, _ *fakeTx, m inbox.Message) error {
		if string(m.Payload) != "payload of "+m.ID {
			t.Errorf("payload is %q", m.Payload)
		}
		return nil
	}
	f.redrive(inbox.Filter{Limit: 1}, inbox.RedriveResult{Selected: 1, Redriven: 1})
	for _, mode := range []inbox.Mode{inbox.DryRun, inbox.Apply} {
		if n, err := f.inbox.Discard(t.Context(), inbox.Filter{}, mode); err != nil || n != 1 {
			t.Errorf("discard: %d, %v", n, err)
		}
	}
	for _, filter := range f.store.listed {
		if !filter.Brief && filter.Numbers == nil {
			t.Errorf("listed with payloads: %+v", filter)
		}
	}
	f.dead(message("c"))
	letters, err := f.inbox.DeadLetters(t.Context(), inbox.Filter{})
	if err != nil || string(letters[0].Message.Payload) != "payload of c" {
		t.Errorf("list: %+v, %v", letters, err)
	}
	if got := f.store.listed[len(f.store.listed)-1].Limit; got != 1000 {
		t.Errorf("limit of a list is %d", got)
	}
}

// A page of which somebody else deletes a part meanwhile is not the last one.
func TestDiscardGoesOnWhenSomebodyElseDeletesMeanwhile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("first"))
	for i := range 2500 {
		letter := f.store.letters[0]
		letter.Number = int64(i) + 2
		f.store.letters = append(f.store.letters, letter)
	}
	in := inbox.New(thievingStore{f.store}, "billing", func(context.Context, *fakeTx, inbox.Message) error { return nil }, f.options(nil)...)
	n, err := in.Discard(t.Context(), inbox.Filter{}, inbox.Apply)
	if err != nil || n != 2501-3 || len(f.store.letters) != 0 {
		t.Errorf("%d deleted, %d left, %v", n, len(f.store.letters), err)
	}
}

// thievingStore loses a letter of each page between its listing and its deletion.
type thievingStore struct{ *fakeStore }

func (s thievingStore) DiscardDeadLetters(ctx context.Context, consumer string, filter inbox.Filter) (int, error) {
	if _, err := s.fakeStore.DiscardDeadLetters(ctx, consumer, inbox.Filter{Numbers: filter.Numbers[:1], Limit: 1}); err != nil {
		return 0, err
	}
	return s.fakeStore.DiscardDeadLetters(ctx, consumer, filter)
}

func TestDiscardDeletesWhatTheFilterSelects(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.dead(message("7"))
	for i := range 1499 {
		letter := f.store.letters[0]
		letter.Number, letter.Message = int64(i)+2, message("more")
		f.store.letters = append(f.store.letters, letter)
	}
	for _, step := range []struct {
		filter inbox.Filter
		want   int
	}{{inbox.Filter{MessageID: "7"}, 1}, {inbox.Filter{Limit: 2}, 2}, {inbox.Filter{}, 1497}, {inbox.Filter{}, 0}} {
		if n, err := f.inbox.Discard(t.Context(), step.filter, inbox.Apply); err != nil || n != step.want {
			t.Errorf("%+v: %d, %v", step.filter, n, err)
		}
	}
	f.wantEvents(inbox.EventDiscarded, 1500)
	f.wantOutcomes(f.process(message("7")), "duplicate")
}
