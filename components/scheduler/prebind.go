package scheduler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// reserving tracks pods whose reservations are being written. These pods are not on a node yet, so
// they need not be deleted when they are preempted: the binding is canceled, and they are queued
// again. It is safe for concurrent use.
type reserving struct {
	mu   sync.Mutex
	pods map[types.UID]context.CancelCauseFunc // guarded by mu
}

// begin returns a context for writing a pod's reservation, and a function to call afterwards. The
// function returns why the binding was canceled, or nil.
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

// cancel cancels the writing of a pod's reservation with cause why, and reports whether one was in
// progress.
func (r *reserving) cancel(pod types.UID, why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cancel := r.pods[pod]
	if cancel != nil {
		cancel(why)
	}
	return cancel != nil
}
