package scheduler

import "sync"

// bell wakes all who wait for the next ring. It may be used by many goroutines.
type bell struct {
	mu   sync.Mutex // guards rung
	rung chan struct{}
}

func newBell() *bell { return &bell{rung: make(chan struct{})} }

// ring wakes those who have asked for next.
func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.rung)
	b.rung = make(chan struct{})
}

// next is closed by the next ring.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rung
}
