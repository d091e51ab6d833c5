package pods

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/podlogs"
	"hyperkube/components/kubelet/podstate"
)

// Tidy rotates the logs of running containers and removes dead containers but
// the newest of each name, and dead sandboxes but the newest of each pod.
func (m *Manager) Tidy(ctx context.Context, rotation podlogs.Rotation) error {
	m.mu.Lock()
	workers := make([]*worker, 0, len(m.workers))
	for _, w := range m.workers {
		workers = append(workers, w)
	}
	m.mu.Unlock()
	var errs []error
	for _, w := range workers {
		errs = append(errs, w.tidy(ctx, rotation))
	}
	return errors.Join(errs...)
}

func (w *worker) tidy(ctx context.Context, rotation podlogs.Rotation) error {
	w.mu.Lock()
	pod, busy := w.pod, w.op != nil
	containers := append([]podstate.Container(nil), w.obs.Containers...)
	sandboxes := append([]podstate.Sandbox(nil), w.obs.Sandboxes...)
	ending := w.stage != syncing
	w.mu.Unlock()
	if ending {
		return nil
	}
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
			_, err := rotation.Rotate(path, func() error {
				_, err := w.host.CRI.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
				return err
			})
			if err != nil && !cri.IsNotFound(err) {
				errs = append(errs, err)
			}
		case c.State == podstate.Exited && seen[c.Name] > 2 && !busy, c.State == podstate.Created && seen[c.Name] > 1 && !busy:
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
		return errors.Join(errs...)
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
	return errors.Join(errs...)
}
