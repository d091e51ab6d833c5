package pods

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// discarding is whether what the runtime has of a pod goes before its object does:
// of pods that were ended for want of something, at once, and of all that have
// ended when the disk is full.
type discarding int

const (
	kept discarding = iota
	unwanted
	// going: what was last seen of containers is what the status tells from now on.
	going
	discarded
)

// discard removes containers and logs of a pod that has ended, whose object stays.
func (w *worker) discard(ctx context.Context, pod *v1.Pod) error {
	if err := w.empty(ctx, pod); err != nil {
		return err
	}
	w.update(func() { w.discards = discarded })
	w.emptied()
	return nil
}

// Emptied returns a channel that is closed once nothing of a pod that was ended
// with Verdict.Discard is left but its object; it is closed when there is no such
// pod.
func (m *Manager) Emptied(uid types.UID) <-chan struct{} {
	if w := m.worker(uid); w != nil {
		return w.bare
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Discard removes the containers and logs of all pods that have ended, and waits
// until that is done. What the API says of them stays. Static pods are left alone,
// for what tells that one has ended is its containers.
func (m *Manager) Discard(ctx context.Context) error {
	var waits []<-chan struct{}
	for _, w := range m.all() {
		w.mu.Lock()
		if w.stage == stopped && w.final == deleteObject && w.host.Kube != nil && !IsStatic(w.pod) && w.discards != discarded {
			w.discards = max(w.discards, unwanted)
			waits = append(waits, w.bare)
			w.kick()
		}
		w.mu.Unlock()
	}
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("removing what is left of pods that have ended: %w", ctx.Err())
		}
	}
	return nil
}
