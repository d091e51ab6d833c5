// Package broadcast notifies all goroutines that wait for the next change of a shared value.
package broadcast

import "sync"

// Broadcast notifies all goroutines that wait for the next change of a shared value. The zero
// Broadcast is ready to use. It is safe for concurrent use, and must not be copied after its first
// use.
//
// A waiter calls Next before it reads the value. If it read the value first, it would miss a change
// between the two. The goroutine that changes the value calls Send afterwards.
type Broadcast struct {
	mu   sync.Mutex // guards next
	next chan struct{}
}

// Next returns a channel that is closed by the next Send.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send notifies the goroutines that wait: it closes the channel that Next has returned since the
// last Send, if any.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil { // otherwise there are no waiters
		close(b.next)
		b.next = nil
	}
}
