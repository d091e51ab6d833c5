package hostcgroups

import (
	"context"
	"time"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/host/cgroup"
)

// Timed is a pods.Cgroups that records the duration of its operations, for metrics.
type Timed struct {
	pods.Cgroups
	// Observe records the duration of an operation: create, update or destroy.
	Observe func(operation string, took time.Duration)
}

// observe records the duration of an operation that began at began.
func (t Timed) observe(operation string, began time.Time) {
	t.Observe(operation, time.Since(began))
}

// Create creates a cgroup with the resource limits r, and records how long that took.
func (t Timed) Create(name string, r cgroup.Resources) error {
	defer t.observe("create", time.Now())
	return t.Cgroups.Create(name, r)
}

// Set changes the resource limits of a cgroup to r, and records how long that took.
func (t Timed) Set(name string, r cgroup.Resources) error {
	defer t.observe("update", time.Now())
	return t.Cgroups.Set(name, r)
}

// Remove removes a cgroup, and records how long that took.
func (t Timed) Remove(ctx context.Context, name string) error {
	defer t.observe("destroy", time.Now())
	return t.Cgroups.Remove(ctx, name)
}
