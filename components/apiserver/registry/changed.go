package registry

import "sync"

// change notifies callers that wait for the next table.
type change struct {
	mu sync.Mutex // guards next
	// next is closed when the next table is published. It is nil while nothing waits for it.
	next chan struct{}
}

// publish makes t the current table.
func (r *Registry) publish(t *table) {
	r.table.Store(t)
	r.change.mu.Lock()
	defer r.change.mu.Unlock()
	if r.change.next != nil {
		close(r.change.next)
		r.change.next = nil
	}
}

// Changed returns a channel that is closed at the next change of the served resources.
func (r *Registry) Changed() <-chan struct{} {
	r.change.mu.Lock()
	defer r.change.mu.Unlock()
	if r.change.next == nil {
		r.change.next = make(chan struct{})
	}
	return r.change.next
}
