package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
)

// fakePruning is a log as a pass over it sees it.
type fakePruning struct {
	log []fakePruned // by number

	abandoned []string
	// busy: another instance is at it.
	busy bool
}

// fakePruned is an event that is older than the retention.
type fakePruned struct {
	kept, gone bool
	looks      int
}

// add appends n events that must stay, or may go.
func (p *fakePruning) add(n int, kept bool) {
	for range n {
		p.log = append(p.log, fakePruned{kept: kept})
	}
}

// looks is how often the events that must stay were looked at: one at most, all
// together, and the last one.
func (s *fakeStore) looks() (most, total, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.pruning.log {
		if e.kept {
			most, last = max(most, e.looks), e.looks
			total += e.looks
		}
	}
	return most, total, last
}

func (s *fakeStore) PruneLog(ctx context.Context, after int64, limit int, _ time.Duration) (pruned outbox.Pruned, err error) {
	err = s.statement(ctx, "PruneLog", func() error {
		p := &s.pruning
		if pruned.Next = after; p.busy {
			return nil
		}
		pruned.Abandoned = p.abandoned
		for i := after; i < int64(len(p.log)) && pruned.Looked < limit; i++ {
			pruned.Next = i + 1
			if e := &p.log[i]; !e.gone {
				pruned.Looked++
				e.looks++
				if !e.kept {
					e.gone = true
					pruned.Events++
				}
			}
		}
		if pruned.Looked < limit {
			pruned.Next = 0
		}
		return nil
	})
	return pruned, err
}

func TestLogIsPruned(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.store.pruning.add(2500, false)
		f.store.pruning.abandoned = []string{"gone"}
		i := f.run()
		f.pass(11 * time.Second)
		if notice := f.wantNotices(outbox.NoticePruned, 1)[0]; notice.Count != 2500 {
			f.Errorf("notice %+v", notice)
		}
		if n := f.store.count("PruneLog"); n != 3 {
			f.Errorf("%d statements for 2,500 events", n)
		}
		f.pass(10 * time.Minute)
		if n := f.store.count("PruneLog"); n < 8 || n > 25 {
			f.Errorf("%d statements in ten minutes", n)
		}
		if notice := f.wantNotices(outbox.NoticeAbandoned, 1)[0]; notice.Relay != "gone" {
			f.Errorf("notice %+v", notice)
		}
		i.stop()
	})
}

// A lane that is held up keeps its own events, and no others.
func TestPruningGoesPastWhatMustStay(t *testing.T) {
	simulate(t, func(f *fixture) {
		p := &f.store.pruning
		p.add(20_500, true)
		p.add(2_500, false)
		p.add(500, true)
		i := f.run()
		f.pass(11 * time.Second)
		if notice := f.wantNotices(outbox.NoticePruned, 1)[0]; notice.Count != 2_500 {
			f.Errorf("notice %+v", notice)
		}
		if most, total, _ := f.store.looks(); most != 1 || total != 21_000 {
			f.Errorf("events that stay were looked at %d times, each up to %d times", total, most)
		}
		// What may go later is found by the next pass.
		f.store.mu.Lock()
		p.log[0].kept = false
		f.store.mu.Unlock()
		f.pass(2 * time.Minute)
		if notice := f.wantNotices(outbox.NoticePruned, 2)[1]; notice.Count != 1 {
			f.Errorf("notice %+v", notice)
		}
		i.stop()
	})
}

// A million events that must stay do not cost a look at each of them in every round.
func TestRoundOfPruningHasALimitAndTheNextOneGoesOn(t *testing.T) {
	simulate(t, func(f *fixture) {
		p := &f.store.pruning
		p.add(350_000, true)
		p.add(10, false)
		i := f.run()
		f.pass(11 * time.Second)
		if _, total, _ := f.store.looks(); total < 50_000 || total > 101_000 {
			f.Errorf("the first round looked at %d events", total)
		}
		f.wantNotices(outbox.NoticePruned, 0)
		f.passRounds(func() bool { return f.store.count("PruneLog") >= 351 })
		f.wantNotices(outbox.NoticePruned, 1)
		if most, total, _ := f.store.looks(); most != 1 || total != 350_000 {
			f.Errorf("until then events that stay were looked at %d times, each up to %d times", total, most)
		}
		i.stop()
	})
}

// passRounds lets rounds pass until done, and none behind the one that did it: between
// two of them lies half a minute at least.
func (f *fixture) passRounds(done func() bool) {
	f.Helper()
	for end := time.Now().Add(10 * time.Minute); !done(); f.pass(10 * time.Second) {
		if time.Now().After(end) {
			f.Fatal("the pass over the log does not come to its end")
		}
	}
}

// An outage, or another instance that is at it, ends a round, and the next one goes on where it was.
func TestRoundOfPruningThatIsCutShortIsGoneOnWith(t *testing.T) {
	for name, interrupt := range map[string]func(s *fakeStore, on bool){
		"busy": func(s *fakeStore, on bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pruning.busy = on
		},
		"outage": func(s *fakeStore, on bool) {
			s.faults(func(_ context.Context, statement string) error {
				if on && statement == "PruneLog" {
					return errors.New("connection refused")
				}
				return nil
			}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(f *fixture) {
				p := &f.store.pruning
				p.add(150_000, true)
				p.abandoned = []string{"gone"}
				i := f.run()
				f.pass(11 * time.Second)
				interrupt(f.store, true)
				before := f.store.count("PruneLog")
				f.pass(10 * time.Minute)
				if n := f.store.count("PruneLog") - before; n < 5 || n > 25 {
					f.Errorf("%d statements in ten minutes", n)
				}
				interrupt(f.store, false)
				f.passRounds(func() bool {
					_, _, last := f.store.looks()
					return last > 0
				})
				if most, _, last := f.store.looks(); most > 2 || last != 1 {
					f.Errorf("events were looked at up to %d times, the last one %d times", most, last)
				}
				f.wantNotices(outbox.NoticeAbandoned, 1)
				i.stop()
			})
		})
	}
}
