package outbox_test

import (
	"testing"
	"time"
)

func TestRelayPublishesWhatIsCommitted(t *testing.T) {
	simulate(t, func(f *fixture) {
		f.append("a1", "b1", "a2", "-1", "-2")
		i := f.run()
		f.pass(time.Second)
		f.wantSent("a1", "b1", "a2", "-1", "-2")
		f.append("b2", "a3")
		f.pass(time.Second)
		f.wantSent("a1", "b1", "a2", "-1", "-2", "b2", "a3")
		i.stop()
		f.wantSaved()
	})
}
