// Package broadcast notifies all goroutines that wait for the next change of something.
package broadcast

import "sync"

// Broadcast notifies all goroutines that wait for the next change. The zero Broadcast is ready to
// use. It is safe for concurrent use, and must not be copied after its first use.
//
// A waiter calls Next before it reads what may change. Otherwise it misses a change between the two.
type Broadcast struct {
	mu   sync.Mutex // guards next
	next chan struct{}
}

// Next returns a channel that the next Send closes.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send closes the channel that Next returned since the last Send.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil { // otherwise there are no waiters
		close(b.next)
		b.next = nil
	}
}
