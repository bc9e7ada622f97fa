package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/outbox"
)

func registrationRules[Tx any]() []outboxRule[Tx] {
	return []outboxRule[Tx]{
		{"RegisteringTheSameAgainChangesNothing", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Topics = []string{"a.*", "b"}
			a := f.start("a", r)
			f.append(outbox.Message{ID: "a", Topic: "b"})
			a.wantCaughtUp("a")
			f.must("register elsewhere", f.db.Open(f.T).Register(f.Context(), r))
			r.FromNow = true // Says where a new relay begins, and this one is not.
			f.must("register again", f.store.Register(f.Context(), r))
			a.wantCaughtUp()
		}},
		{"OtherSettingsAreRefusedByName", func(f *outboxFixture[Tx]) {
			r := registration()
			r.Topics = []string{"a", "b"}
			f.register(r)
			for name, change := range map[string]func(r *outbox.Registration){
				"lanes":     func(r *outbox.Registration) { r.Lanes = 16 },
				"topics":    func(r *outbox.Registration) { r.Topics = []string{"a"} },
				"policy":    func(r *outbox.Registration) { r.Policy = outbox.ParkKey },
				"retention": func(r *outbox.Registration) { r.Retention = time.Hour },
			} {
				other := r
				change(&other)
				err := f.store.Register(f.Context(), other)
				f.wantIs(err, outbox.ErrSettings)
				for _, said := range []string{"lanes", "topics", "policy", "retention"} {
					if names := strings.Contains(strings.ToLower(err.Error()), said); names != (said == name) {
						f.Errorf("with other %s the error is %q", name, err)
					}
				}
			}
			f.register(r)
		}},
		{"NumberOfLanesThatCannotBeIsRefused", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"))
			for _, lanes := range []int{-1, 0, 1025} {
				r := registration()
				r.Relay, r.Lanes = "other", lanes
				refused := func(what string, err error) {
					f.Helper()
					if said := fmt.Sprintf("lanes is %d", lanes); err == nil || !strings.Contains(err.Error(), said) {
						f.Errorf("%s with %d lanes: %v, want an error that says %q", what, lanes, err, said)
					}
				}
				refused("register", f.store.Register(f.Context(), r))
				_, err := f.store.Lease(f.Context(), r.Relay, "a", longLease)
				f.wantIs(err, outbox.ErrNoRelay)
				f.register(registration())
				refused("change lanes", f.store.ChangeLanes(f.Context(), relayName, lanes))
			}
			f.start("a", registration()).wantCaughtUp("a")
		}},
		{"InstanceOfOtherSettingsOwnsNothing", func(f *outboxFixture[Tx]) {
			zombie := f.startElsewhere("zombie", registration())
			f.must("leave", f.store.Leave(f.Context(), relayName, "zombie"))
			f.must("change lanes", f.store.ChangeLanes(f.Context(), relayName, relayLanes/2))
			_, err := zombie.store.Lease(f.Context(), relayName, "zombie", longLease)
			f.wantIs(err, outbox.ErrSettings)
			r := registration()
			r.Lanes = relayLanes / 2
			if owned := f.start("a", r).lanes(); len(owned) != r.Lanes {
				f.Errorf("lanes %v are owned, want all", owned)
			}
		}},
		{"RelayBeginsWithTheOldestEvent", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"))
			f.start("a", registration()).wantCaughtUp("a")
		}},
		{"FromNowBeginsBehindWhatIsCommitted", func(f *outboxFixture[Tx]) {
			f.append(eventOf("a", "k"), eventOf("b", "j"))
			r := registration()
			r.FromNow = true
			a := f.start("a", r)
			f.append(eventOf("c", "k"))
			a.wantCaughtUp("c")
		}},
		{"FromNowMissesNothingThatIsStillOpen", func(f *outboxFixture[Tx]) {
			if f.db.OneWriter() {
				return // Nothing can be open while the relay is written.
			}
			open := f.begin()
			f.appendIn(open, eventOf("a", "k"))
			f.append(eventOf("b", "k"))
			r := registration()
			r.FromNow = true
			a := f.start("a", r)
			f.commit(open)
			a.wantCaughtUp("a")
		}},
		{"RelaysReadOneLogIndependently", func(f *outboxFixture[Tx]) {
			other := registration()
			other.Relay, other.Lanes = "other", 16
			a, b := f.start("a", registration()), f.start("a", other)
			f.append(eventOf("a", "k"))
			a.wantCaughtUp("a")
			a.wantCaughtUp()
			b.wantCaughtUp("a")
		}},
		{"ManyMayRegisterAtOnce", func(f *outboxFixture[Tx]) {
			errs := make(chan error, 8)
			for i := range 8 {
				store := f.db.Open(f.T)
				go func() {
					err := store.Register(f.Context(), registration())
					if err != nil {
						err = fmt.Errorf("instance %d: %w", i, err)
					}
					errs <- err
				}()
			}
			for range 8 {
				f.must("register", within(f.T, "a registration", errs))
			}
		}},
	}
}
