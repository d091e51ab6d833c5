package pods

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Emptied returns a channel that is closed when the containers and logs of a terminated pod are removed. The
// eviction manager waits for it after it has evicted a pod to reclaim disk space. The channel is already closed
// if there is no such pod.
func (r *Registry) Emptied(uid types.UID) <-chan struct{} {
	if w := r.worker(uid); w != nil {
		return w.ends.emptied
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Discard removes the containers and logs of all terminated pods whose API objects still exist, and waits until
// they are removed. It returns an error if ctx is done before. The eviction manager calls it to reclaim disk
// space. The status of the pods in the API does not change. Static pods are excluded, because only their
// containers show that they have terminated.
func (r *Registry) Discard(ctx context.Context) error {
	var waits []<-chan struct{}
	for _, w := range r.all() {
		w.mu.Lock()
		if w.machine.RequestDiscard() {
			waits = append(waits, w.ends.emptied)
			w.kick()
		}
		w.mu.Unlock()
	}
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("removing containers of terminated pods: %w", ctx.Err())
		}
	}
	return nil
}
