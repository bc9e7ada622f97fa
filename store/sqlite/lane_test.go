package sqlite

import "testing"

// TestSlotsNeverChange: instances of two versions would publish one key side by side.
func TestSlotsNeverChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key    []byte
		number int64
		want   int
	}{
		{nil, 1, 1},
		{nil, 1025, 1},
		{[]byte{}, 7, 961},
		{[]byte("a"), 7, 192},
		{[]byte("order-1001"), 8, 542},
		{[]byte("\x00\xff"), 9, 615},
	} {
		if got := slotOf(c.key, c.number); got != c.want {
			t.Errorf("slot of key %q, number %d: %d, want %d", c.key, c.number, got, c.want)
		}
	}
}
