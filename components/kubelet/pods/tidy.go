package pods

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/podstate"
)

// DeadContainers is which containers that have ended are kept.
type DeadContainers struct {
	// MinAge is how long they are kept at least.
	MinAge time.Duration
	// Each is how many of one name are kept, 1 when it is nil, and besides them
	// the newest, which tells how the container is. Negative: all.
	Each *int
	// All is how many of all pods are; nil or negative: no bound.
	All *int
}

// Tidy rotates the logs of running containers and removes dead containers but
// those that are kept, and dead sandboxes but the newest of each pod. It tells
// whether a log was rotated: one that grows fast is to be looked at again soon.
func (m *Manager) Tidy(ctx context.Context, rotation podlogs.Rotation) (rotated bool, err error) {
	m.tidying.Lock()
	defer m.tidying.Unlock()
	workers := m.all()
	var errs []error
	each := 1
	if n := m.host.Dead.Each; n != nil {
		each = *n
	}
	if n := m.host.Dead.All; n != nil && *n >= 0 {
		// All have the same part of what is kept at most.
		names := 0
		for _, w := range workers {
			w.mu.Lock()
			names += len(w.pod.Spec.Containers) + len(w.pod.Spec.InitContainers)
			w.mu.Unlock()
		}
		if part := *n / max(names, 1); each < 0 || part < each {
			each = part
		}
	}
	for _, w := range workers {
		one, err := w.tidy(ctx, rotation, each)
		rotated, errs = rotated || one, append(errs, err)
	}
	return rotated, errors.Join(errs...)
}

func (w *worker) tidy(ctx context.Context, rotation podlogs.Rotation, each int) (rotated bool, err error) {
	w.mu.Lock()
	// Of a pod that ends all is removed soon; only what still runs may fill the disk.
	pod, busy := w.pod, w.op != nil || w.stage != syncing
	containers := append([]podstate.Container(nil), w.obs.Containers...)
	sandboxes := append([]podstate.Sandbox(nil), w.obs.Sandboxes...)
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
				path = filepath.Join(w.host.LogDir(pod), path)
			}
			one, err := rotation.Rotate(path, func() error {
				_, err := w.host.CRI.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
				return err
			})
			if err != nil && !cri.IsNotFound(err) {
				errs = append(errs, err)
			}
			rotated = rotated || one
		case c.State == podstate.Exited && each >= 0 && seen[c.Name] > 1+each && !busy && time.Since(c.FinishedAt) >= w.host.Dead.MinAge, c.State == podstate.Created && seen[c.Name] > 1 && !busy:
			// The newest, and the one that tells the last termination, stay.
			if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("removing a dead container: %w", err))
				continue
			}
			w.host.unlinkLog(pod, c.Name, c.ID)
			w.host.removeLog(pod, c)
			w.update(func() { w.dirty = true })
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
			errs = append(errs, fmt.Errorf("removing a dead sandbox: %w", err))
			continue
		}
		w.update(func() { w.dirty = true })
	}
	return rotated, errors.Join(errs...)
}
