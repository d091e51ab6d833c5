package pods

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// Emptied returns a channel that is closed when the containers and logs of a pod that was
// terminated with Verdict.Discard are removed, or if there is no such pod.
func (r *Registry) Emptied(uid types.UID) <-chan struct{} {
	if w := r.worker(uid); w != nil {
		return w.ends.emptied
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Discard removes the containers and logs of all terminated pods and waits until they are removed.
// Their status in the API does not change. Static pods are excluded, because only their containers
// show that they have terminated.
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
