package pods

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// discardState is the state of the removal of a terminated pod's containers and logs before its
// object is deleted. They are removed immediately for evicted pods, and for all terminated pods
// when disk space must be reclaimed.
type discardState int

const (
	discardNone discardState = iota
	discardRequested
	// discardStarted: the removal has started. The status is computed from the last observed containers from
	// now on.
	discardStarted
	discardDone
)

// discard removes containers and logs of a terminated pod whose object still exists.
func (w *worker) discard(ctx context.Context, pod *v1.Pod) error {
	if err := w.removeContainersAndLogs(ctx, pod); err != nil {
		return err
	}
	w.update(func() { w.discards = discardDone })
	w.emptied()
	return nil
}

// Emptied returns a channel that is closed when the containers and logs of a pod that was
// terminated with Verdict.Discard are removed, or if there is no such pod.
func (r *Registry) Emptied(uid types.UID) <-chan struct{} {
	if w := r.worker(uid); w != nil {
		return w.emptiedCh
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
		if w.stage == stopped && w.final == deleteObject && w.host.Kube != nil && !IsStatic(w.pod) && w.discards != discardDone {
			w.discards = max(w.discards, discardRequested)
			waits = append(waits, w.emptiedCh)
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
