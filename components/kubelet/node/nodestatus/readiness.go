package nodestatus

import (
	"context"
	"time"
)

// Readiness determines whether the node is ready, apart from the status of its container runtime. Its methods
// are safe for concurrent use.
type Readiness struct {
	// Pods reports whether the runtime responds to the pod workers.
	Pods interface {
		RuntimeUnresponsive(now time.Time) error
	}
	// Shutdown reports why the node is not ready because the machine shuts down, or "".
	Shutdown interface{ NotReadyReason() string }
	// ServicesReady is closed when pods can reach services. If it is nil, they always can.
	ServicesReady <-chan struct{}
	// Changed is called by Run when pods can reach services.
	Changed func()
}

// Reasons returns why the node is not ready even if its container runtime is, or nil. The reasons become the
// message of the Ready condition.
func (r Readiness) Reasons() []string {
	if err := r.Pods.RuntimeUnresponsive(time.Now()); err != nil {
		return []string{err.Error()}
	}
	if reason := r.Shutdown.NotReadyReason(); reason != "" {
		return []string{reason}
	}
	if r.ServicesReady != nil {
		select {
		case <-r.ServicesReady:
		default:
			return []string{"service proxy not ready: the rules of services are not written yet"}
		}
	}
	return nil
}

// Run waits until ServicesReady is closed: pods can reach services. It then calls Changed, so that the Node becomes
// ready, and returns. It returns early when ctx is done, and immediately if ServicesReady is nil.
func (r Readiness) Run(ctx context.Context) error {
	if r.ServicesReady == nil {
		return nil
	}
	select {
	case <-r.ServicesReady:
		r.Changed()
	case <-ctx.Done():
	}
	return nil
}
