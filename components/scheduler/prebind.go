package scheduler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// reserving are the pods that what comes with their node is being written for. They
// are on no node yet, so that one which must make room for a more important pod
// need not be deleted: it is only told to wait again. It may be used by many
// goroutines.
type reserving struct {
	mu   sync.Mutex
	pods map[types.UID]context.CancelCauseFunc // guarded by mu
}

// begin returns the context in which a pod's reservation is written, and what is to
// be called once it is: that returns why it was called off, nil if it was not.
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

// callOff tells whether a pod's reservation was being written, and ends that.
func (r *reserving) callOff(pod types.UID, why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cancel := r.pods[pod]
	if cancel != nil {
		cancel(why)
	}
	return cancel != nil
}
