package hostcgroups

import (
	"context"
	"time"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/host/cgroup"
)

// Timed records the duration of operations on pods' cgroups.
type Timed struct {
	pods.Cgroups
	// Observe records the duration of an operation: create, update or destroy.
	Observe func(operation string, took time.Duration)
}

func (t Timed) observe(operation string, began time.Time) {
	t.Observe(operation, time.Since(began))
}

// Create implements pods.Cgroups.
func (t Timed) Create(name string, r cgroup.Resources) error {
	defer t.observe("create", time.Now())
	return t.Cgroups.Create(name, r)
}

// Set implements pods.Cgroups.
func (t Timed) Set(name string, r cgroup.Resources) error {
	defer t.observe("update", time.Now())
	return t.Cgroups.Set(name, r)
}

// Remove implements pods.Cgroups.
func (t Timed) Remove(ctx context.Context, name string) error {
	defer t.observe("destroy", time.Now())
	return t.Cgroups.Remove(ctx, name)
}
