package kafka

import (
	"encoding/binary"
	"testing"
	"time"
)

// A broker whose quota is used up answers at once, with nothing: that is a time
// to wait, not a corrupt answer.
func TestUsedUpQuotaIsATimeToWait(t *testing.T) {
	t.Parallel()
	body := binary.BigEndian.AppendUint32(nil, correlationID)
	body = binary.BigEndian.AppendUint32(body, 1500) // throttle time, ms
	body = append(body, 0, 0)                        // no error
	body = append(body, 0, 0, 0, 0)                  // session
	body = append(body, 0, 0, 0, 0)                  // topics
	a, err := parseAnswer(body, 11)
	if err != nil || a.throttle != 1500*time.Millisecond {
		t.Errorf("%+v, %v", a, err)
	}
	binary.BigEndian.PutUint32(body[4:], 1<<31-1)
	if a, err := parseAnswer(body, 11); err != nil || a.throttle != maxThrottle {
		t.Errorf("a quota for ever: %+v, %v", a, err)
	}
	binary.BigEndian.PutUint32(body[4:], 0)
	if a, err := parseAnswer(body, 11); err == nil {
		t.Errorf("an answer for no topic: %+v", a)
	}
}
