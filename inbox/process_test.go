package inbox_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/inbox"
)

func TestMessageIsHandledOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.wantOutcomes(f.process(messages("a", "b")...), "processed, processed")
	f.wantOutcomes(f.process(messages("b", "c", "a")...), "duplicate, processed, duplicate")
	f.wantEffects("a", "b", "c")
}

func TestConsumersAndSourcesAreIndependent(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.process(message("a"))
	other := message("a")
	other.Source = "refunds"
	f.wantOutcomes(f.process(other), "processed")
	shipping := inbox.New(f.store, "shipping", func(_ context.Context, tx *fakeTx, m inbox.Message) error { return tx.Do("ship " + m.ID) })
	results, err := shipping.Process(t.Context(), messages("a"))
	if err != nil {
		t.Fatal(err)
	}
	f.wantOutcomes(results, "processed")
	f.wantEffects("a", "a", "ship a")
}

func TestBatchSharesOneTransaction(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(3))
	f.wantOutcomes(f.process(messages("a", "b", "a", "c", "d")...), "processed, processed, duplicate, processed, processed")
	f.wantEffects("a", "b", "c", "d")
	f.wantCalls("a", "b", "c", "d")
	if f.store.atomics != 2 {
		t.Errorf("%d transactions for five messages in batches of three", f.store.atomics)
	}
}

func TestBulkHandlerGetsTheNewMessagesOfABatchInOrder(t *testing.T) {
	t.Parallel()
	f := setupBulk(t, inbox.Batch(10))
	f.process(message("b"))
	f.wantOutcomes(f.process(messages("a", "b", "c", "a")...), "processed, duplicate, processed, duplicate")
	f.wantCalls("b", "a+c")
}

func TestBulkHandlerIsNotCalledWithoutNewMessages(t *testing.T) {
	t.Parallel()
	f := setupBulk(t, inbox.Batch(10))
	f.process(messages("a", "b")...)
	f.wantOutcomes(f.process(messages("a", "b")...), "duplicate, duplicate")
	f.wantCalls("a+b")
}

func TestFailedBatchIsRunOneByOneUpToTheFailedMessage(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*testing.T, ...inbox.Option) *fixture{"each": setup, "bulk": setupBulk} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, inbox.Batch(4))
			f.failOn(errHandler, "c")
			results := f.process(messages("a", "b", "c", "d", "e")...)
			f.wantOutcomes(results, "processed, processed, failed, not run, not run")
			wantError(t, results[2].Err, errHandler)
			f.wantEffects("a", "b")
			if n := f.attempts("c"); n != 1 {
				t.Errorf("%d attempts counted; the batch's failure is none of its own", n)
			}
			if n := f.inbox.Stats().Retries; n != 1 {
				t.Errorf("%d retries", n)
			}
		})
	}
}

func TestMessagesBehindAFailedOneAreNotRun(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.failOn(errHandler, "b")
	f.wantOutcomes(f.process(messages("a", "b", "c")...), "processed, failed, not run")
	f.wantCalls("a", "b")
}

func TestProcessOfNothingIsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if results := f.process(); len(results) != 0 || f.store.atomics != 0 {
		t.Errorf("%v after %d transactions", results, f.store.atomics)
	}
}

func TestMessageWithoutIDIsSetAsideOncePerDelivery(t *testing.T) {
	t.Parallel()
	for name, position := range map[string]string{"position": "orders/0/5", "no position": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			m := message("")
			m.Position = position
			f.wantOutcomes(f.process(m), "parked")
			f.wantOutcomes(f.process(m), "duplicate")
			f.wantLetters(" missing_id")
			if position == "" {
				m.Payload = append(m.Payload, '!')
			} else {
				m.Position = "orders/0/6"
			}
			f.wantOutcomes(f.process(m), "parked")
			f.wantLetters(" missing_id", " missing_id")
			f.wantCalls()
		})
	}
}

// A topic that is deleted and made again counts from the start.
func TestOtherMessageWithoutIDAtAKnownPositionIsSetAsideToo(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*inbox.Message){
		"payload": func(m *inbox.Message) { m.Payload = []byte("another") },
		"key":     func(m *inbox.Message) { m.Key = []byte("k") },
		"headers": func(m *inbox.Message) { m.Headers = []inbox.Header{{Name: "n"}} },
		"time":    func(m *inbox.Message) { m.Time = time.Now() },
	} {
		f := setup(t)
		m := message("")
		f.process(m)
		change(&m)
		f.wantOutcomes(f.process(m), "parked")
		f.wantOutcomes(f.process(m), "duplicate")
		if len(f.store.letters) != 2 {
			t.Errorf("%s: %d letters", name, len(f.store.letters))
		}
	}
}

func TestDeliveryWithoutIDIsNoDuplicateOfAnIDThatLooksLikeItsPosition(t *testing.T) {
	t.Parallel()
	f := setup(t)
	lookalike := message("at:orders/0/5")
	nameless := message("")
	nameless.Position = "orders/0/5"
	f.wantOutcomes(f.process(lookalike, nameless), "processed, parked")
}

func TestMissingIDsAndTooOldMessagesDoNotStopTheirBatch(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(10))
	old := message("old")
	old.Time = time.Now().Add(-15 * day)
	f.wantOutcomes(f.process(message("a"), message(""), old, message("b")), "processed, parked, parked, processed")
	f.wantLetters(" missing_id", "old too_old")
	if f.store.atomics != 1 {
		t.Errorf("%d transactions", f.store.atomics)
	}
}

// A handler that spoils its transaction, as by swallowing an SQL error, fails alone:
// the dead letters of its batch are written before it runs.
func TestSpoiledTransactionIsTheFailureOfItsMessageAlone(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(10), inbox.MaxAttempts(1))
	f.on = func(_ context.Context, tx *fakeTx, m inbox.Message) error {
		if m.ID == "bad" {
			tx.Spoil()
		}
		return nil
	}
	f.wantOutcomes(f.process(message("a"), message("bad"), message(""), message("b")), "processed, parked, parked, processed")
	f.wantLetters("bad attempts", " missing_id")
	f.wantEffects("a", "b")
	f.wantEvents(inbox.EventOutage, 0)
}

func TestTooOldMessageIsSetAsideUnlessItsRecordExists(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Retention(day))
	known, unknown := message("known"), message("unknown")
	f.process(known)
	known.Time = time.Now().Add(-day - time.Minute)
	unknown.Time = known.Time
	f.wantOutcomes(f.process(known, unknown), "duplicate, parked")
	f.wantOutcomes(f.process(unknown), "duplicate")
	f.wantLetters("unknown too_old")
	young := message("young")
	young.Time = time.Now().Add(-day + time.Minute)
	f.wantOutcomes(f.process(young), "processed")
}

func TestRecordsLiveADayLongerThanMessagesMayBeOld(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Retention(3*day))
	f.process(message("a"))
	if got := f.store.claims[0].Retention; got != 4*day {
		t.Errorf("claimed for %v", got)
	}
}

// It gets too old later, so its record must be there later.
func TestRecordOfAMessageFromTheFutureLivesUntilTheMessageIsTooOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for ahead, want := range map[time.Duration]time.Duration{
			40 * day:            44 * day,
			-2 * day:            4 * day,
			200 * 365 * day:     idempotency.MaxRetention,
			1<<63 - 1:           idempotency.MaxRetention,
			50000 * 365 * 86400: 50000*365*86400 + 4*day,
		} {
			for _, id := range []string{"a", ""} {
				f := setup(t, inbox.Retention(3*day), inbox.FingerprintPayload(), inbox.MaxAttempts(1))
				f.failOn(errHandler, "a")
				m := message(id)
				m.Time = time.Now().Add(ahead)
				other := m
				other.Payload = []byte("reused")
				f.process(m, other)
				for _, claim := range f.store.claims {
					if claim.Retention != want {
						t.Errorf("%v ahead: claimed in %s for %v, want %v", ahead, claim.Scope, claim.Retention, want)
					}
				}
			}
		}
		f := setup(t, inbox.Retention(3*day))
		m := message("far")
		m.Time = time.Date(57000, 1, 1, 0, 0, 0, 0, time.UTC) // microseconds taken for milliseconds
		f.wantOutcomes(f.process(m, m), "processed, duplicate")
	})
}

func TestReusedIDIsFoundBeforeAnyHandlerRuns(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.FingerprintPayload(), inbox.Batch(5))
	other := message("a")
	other.Payload = []byte("something else")
	f.wantOutcomes(f.process(message("a"), message("b"), other), "processed, processed, parked")
	f.wantCalls("a", "b")
}

func TestReusedIDIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.FingerprintPayload(), inbox.Batch(5))
	other := message("a")
	other.Payload = []byte("something else")
	f.wantOutcomes(f.process(message("a"), other, message("b")), "processed, parked, processed")
	f.wantOutcomes(f.process(message("a"), other), "duplicate, duplicate")
	f.wantLetters("a id_reused")
	f.wantEffects("a", "b")
}

func TestNoPayloadAndAnEmptyOneAreDifferent(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.FingerprintPayload())
	tombstone, empty := message("a"), message("a")
	tombstone.Payload, empty.Payload = nil, []byte{}
	f.wantOutcomes(f.process(tombstone, empty), "processed, parked")
	f.wantOutcomes(f.process(tombstone), "duplicate")
}

func TestPayloadIsNotComparedUnlessAsked(t *testing.T) {
	t.Parallel()
	f := setup(t)
	other := message("a")
	other.Payload = []byte("encoded anew")
	f.wantOutcomes(f.process(message("a"), other), "processed, duplicate")
}

func TestMessageWithoutSourceIsAnErrorOfTheAdapter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	m := message("b")
	m.Source = ""
	results, err := f.inbox.Process(t.Context(), []inbox.Message{message("a"), m})
	if err == nil || !strings.Contains(err.Error(), "Source of message 2 of 2 is empty") {
		t.Errorf("error is %v", err)
	}
	f.wantOutcomes(results, "not run, not run")
}

func TestConcurrentDeliveriesHaveOneEffect(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(7))
	var ids []string
	for i := range 50 {
		ids = append(ids, strconv.Itoa(i))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			results, err := f.inbox.Process(t.Context(), messages(ids...))
			if err != nil {
				t.Error(err)
			}
			for _, result := range results {
				if !result.Settled() {
					t.Errorf("%v", result)
				}
			}
		})
	}
	wg.Wait()
	if len(f.store.effects) != 50 {
		t.Errorf("%d effects of 50 messages", len(f.store.effects))
	}
	stats := f.inbox.Stats()
	if stats.Processed != 50 || stats.Duplicates != 7*50 {
		t.Errorf("%+v", stats)
	}
}
