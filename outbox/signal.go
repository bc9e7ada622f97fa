package outbox

import "sync"

// Signal tells relays in this process that events may be about to be committed.
// The zero Signal is ready for use.
type Signal struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

// Raise wakes every listener. It never blocks.
func (s *Signal) Raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for listener := range s.listeners {
		select {
		case listener <- struct{}{}:
		default: // It has not looked since it was woken.
		}
	}
}

// Listen returns a channel that receives after each Raise, once for several that
// nobody has looked at, until stop is called.
func (s *Signal) Listen() (raised <-chan struct{}, stop func()) {
	listener := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners == nil {
		s.listeners = map[chan struct{}]struct{}{}
	}
	s.listeners[listener] = struct{}{}
	return listener, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, listener)
	}
}
