package scheduler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// reserving tracks the pods whose volumes and devices are being reserved before they are bound. Such a pod is not on a
// node yet, so it need not be deleted when it is chosen as a preemption victim: its binding is canceled, and the pod is
// queued again. It is safe for concurrent use.
type reserving struct {
	mu   sync.Mutex
	pods map[types.UID]context.CancelCauseFunc // guarded by mu
}

// begin starts tracking a pod. It returns a context for writing the pod's reservation, which cancel cancels, and a
// function that the caller must call afterwards. That function returns the cause of the cancellation, or nil.
func (r *reserving) begin(ctx context.Context, pod types.UID) (context.Context, func() error) {
	off, cancel := context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[types.UID]context.CancelCauseFunc{}
	}
	r.pods[pod] = cancel
	return off, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.pods, pod)
		why := context.Cause(off)
		cancel(nil)
		return why
	}
}

// cancel cancels the reservation of a pod with the cause why. It reports whether the pod was being reserved.
func (r *reserving) cancel(pod types.UID, why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cancel := r.pods[pod]
	if cancel != nil {
		cancel(why)
	}
	return cancel != nil
}
