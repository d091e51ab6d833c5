package registry

import "sync"

// change wakes those who wait for the next table.
type change struct {
	mu sync.Mutex // guards next
	// next is closed with the next table; nil while nobody waits for it.
	next chan struct{}
}

// publish makes t what is served.
func (r *Registry) publish(t *table) {
	r.table.Store(t)
	r.change.mu.Lock()
	defer r.change.mu.Unlock()
	if r.change.next != nil {
		close(r.change.next)
		r.change.next = nil
	}
}

// Changed is closed when what is served changes after this call.
func (r *Registry) Changed() <-chan struct{} {
	r.change.mu.Lock()
	defer r.change.mu.Unlock()
	if r.change.next == nil {
		r.change.next = make(chan struct{})
	}
	return r.change.next
}
