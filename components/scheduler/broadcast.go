package scheduler

import "sync"

// broadcast wakes all goroutines that wait for the next ring. It is safe for concurrent use.
type broadcast struct {
	mu sync.Mutex // guards rung
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// notify closes the channel that next has returned.
func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}

// next returns a channel that the next ring closes.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}
