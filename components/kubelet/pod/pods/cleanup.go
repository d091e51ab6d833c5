package pods

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
)

// DeadContainers configures how many exited containers the GarbageCollector retains, so that their logs and
// last states can still be read.
type DeadContainers struct {
	// MinAge is the minimum time since the exit of a container before the container may be removed.
	MinAge time.Duration
	// PerContainer is the number of exited containers retained per container name in addition to the newest
	// one, which determines the container's status. Nil means 1; a negative value means all.
	PerContainer *int
	// Total is the maximum number of exited containers on the node. It lowers PerContainer: it is distributed
	// evenly among the containers of all pods. Nil or a negative value means no limit.
	Total *int
}

// GarbageCollector removes exited containers and stopped sandboxes of the node's pods, and rotates the logs
// of running containers. The housekeeping calls it periodically, and the eviction manager when disk space
// must be reclaimed.
type GarbageCollector struct {
	registry *Registry
	logs     Logs
	retain   DeadContainers
	mu       sync.Mutex // held by Collect
}

// NewGarbageCollector returns the collector for the pods of the registry r. logs are the directories of
// container logs, and retain configures the exited containers that are not removed.
func NewGarbageCollector(r *Registry, logs Logs, retain DeadContainers) *GarbageCollector {
	return &GarbageCollector{registry: r, logs: logs, retain: retain}
}

// Collect rotates the logs of running containers, and removes exited containers except those that
// DeadContainers retains, containers that were never started, and stopped sandboxes except the newest of each
// pod. For a pod that is terminating or is being started or resized, it only rotates logs. rotated is true if a
// log was rotated: a log that grows fast must be checked again soon. err joins the errors of all pods; an error
// does not stop the collection.
func (g *GarbageCollector) Collect(ctx context.Context, rotation podlogs.Rotation) (rotated bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	workers := g.registry.all()
	var errs []error
	each := 1
	if n := g.retain.PerContainer; n != nil {
		each = *n
	}
	if n := g.retain.Total; n != nil && *n >= 0 {
		// The maximum is distributed evenly among all containers.
		names := 0
		for _, w := range workers {
			w.mu.Lock()
			names += len(w.machine.Pod.Spec.Containers) + len(w.machine.Pod.Spec.InitContainers)
			w.mu.Unlock()
		}
		if part := *n / max(names, 1); each < 0 || part < each {
			each = part
		}
	}
	for _, w := range workers {
		one, err := w.collectGarbage(ctx, rotation, each, g.retain.MinAge)
		rotated, errs = rotated || one, append(errs, err)
	}
	return rotated, errors.Join(errs...)
}

// collectGarbage is GarbageCollector.Collect for one pod. each is the number of exited containers to retain per
// container name in addition to the newest one; a negative value means all. Containers that have exited less
// than minAge ago, the newest sandbox and sandboxes that still have a container are retained, too. While the
// pod is terminating or an operation on it is in progress, only logs are rotated. rotated is true if a log was
// rotated.
func (w *worker) collectGarbage(ctx context.Context, rotation podlogs.Rotation, each int, minAge time.Duration) (rotated bool, err error) {
	w.mu.Lock()
	// Everything of a terminating pod is removed soon. Only logs of running containers can fill the
	// disk.
	m := w.machine
	pod, busy := m.Pod, m.Operation != podmachine.None || m.Stage != podmachine.Syncing
	containers := append([]podstate.Container(nil), m.Containers.Observed.Containers...)
	sandboxes := append([]podstate.Sandbox(nil), m.Containers.Observed.Sandboxes...)
	w.mu.Unlock()
	var errs []error
	seen := map[string]int{}
	live := map[string]bool{}
	for i := range containers {
		c := &containers[i]
		seen[c.Name]++
		switch {
		case c.State == podstate.Running:
			live[c.SandboxID] = true
			path := c.LogPath
			if path == "" {
				continue
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(w.host.Logs.Dir(pod), path)
			}
			one, err := rotation.Rotate(path, func() error {
				_, err := w.host.CRI.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
				return err
			})
			if err != nil && !cri.IsNotFound(err) {
				errs = append(errs, err)
			}
			rotated = rotated || one
		case c.State == podstate.Exited && each >= 0 && seen[c.Name] > 1+each && !busy && time.Since(c.FinishedAt) >= minAge, c.State == podstate.Created && seen[c.Name] > 1 && !busy:
			// The newest container and the one of the last termination state are kept.
			if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("removing exited container: %w", err))
				continue
			}
			w.host.logs.unlinkLog(pod, c.Name, c.ID)
			w.host.logs.removeLog(pod, c)
			w.update(func() { w.fresh.all = true })
		default:
			live[c.SandboxID] = true
		}
	}
	if busy {
		return rotated, errors.Join(errs...)
	}
	for i, s := range sandboxes {
		if i == 0 || s.Ready || live[s.ID] {
			continue
		}
		if _, err := w.host.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("removing stopped sandbox: %w", err))
			continue
		}
		w.update(func() { w.fresh.all = true })
	}
	return rotated, errors.Join(errs...)
}
