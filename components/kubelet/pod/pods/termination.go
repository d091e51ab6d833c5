package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/pod/podutil"
)

// finalStep is a step of the termination of a pod. Each step runs in a separate goroutine while the
// worker's loop continues.
type finalStep int

const (
	stopSandboxes finalStep = iota
	cleanUp
	deleteObject
	removeAll
	allDone
)

// stepTermination starts the next step of the termination of a pod. The caller must hold mu.
func (w *worker) stepTermination(ctx context.Context, now time.Time) (wakeAt time.Time, done bool) {
	soon := w.reportOverdue(now)
	if w.op != nil {
		if !w.op.end {
			w.op.cancel()
		}
		return soon, false
	}
	for id, g := range w.probes {
		g.StopStartupAndLiveness()
		if st := w.obs.ByID(id); st == nil || st.State != podstate.Running {
			delete(w.probes, id)
			go g.Stop()
		}
	}
	if w.stage == terminating {
		if w.stopContainers(ctx) {
			return soon, false
		}
		if w.final == stopSandboxes {
			if w.mountAt.After(now) {
				return w.mountAt, false
			}
			w.runStep(ctx, w.stopAll)
			return time.Time{}, false
		}
		w.stage = stopped
	}
	if w.mountAt.After(now) {
		return w.mountAt, false
	}
	switch w.final {
	case cleanUp:
		w.runStep(ctx, w.tearDown)
	case deleteObject:
		switch {
		case w.removed || w.host.Kube == nil || IsStatic(w.pod):
			if w.removed {
				w.final = removeAll
				if w.runAgain {
					w.final = allDone
				}
				w.kick()
			}
		case w.discards == discardRequested || w.discards == discardStarted:
			w.discards = discardStarted
			w.runStep(ctx, w.discard)
		case w.pod.DeletionTimestamp != nil:
			// Write the last status before the deletion.
			if w.report.settled() {
				w.runStep(ctx, w.deletePod)
			}
		}
	case removeAll:
		w.runStep(ctx, w.removeAll)
	case allDone:
		return time.Time{}, true
	}
	return time.Time{}, false
}

// minOverdue is the minimum time before an overdue termination is reported, regardless of the
// grace period.
const minOverdue = 10 * time.Second

// overdueAfter returns how long a pod that the kubelet terminates may take before the termination is
// overdue: 1.5 times its grace period. The caller must hold mu.
func (w *worker) overdueAfter() time.Duration {
	grace := int64(0)
	switch {
	case w.verdict.Grace != nil:
		grace = *w.verdict.Grace
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	return max(time.Duration(grace)*time.Second*3/2, minOverdue)
}

// reportOverdue emits an event when the termination by the kubelet is overdue. It returns when to call
// it again; zero means never. The caller must hold mu.
func (w *worker) reportOverdue(now time.Time) time.Time {
	if w.stage == stopped {
		w.overdueAt = time.Time{}
	}
	if w.overdueAt.IsZero() || now.Before(w.overdueAt) {
		return w.overdueAt
	}
	w.overdueAt = time.Time{}
	w.host.event(w.pod, "", true, "ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period.")
	return time.Time{}
}

// runStep runs one step of the termination in a goroutine. A failed step is retried later.
func (w *worker) runStep(ctx context.Context, f func(ctx context.Context, pod *v1.Pod) error) {
	ctx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel, end: true}
	pod := w.pod
	w.report.wait.Go(func() {
		defer cancel()
		err := f(ctx, pod)
		w.update(func() {
			w.op = nil
			if err == nil {
				w.mountGap, w.mountAt = 0, time.Time{}
				return
			}
			w.mountGap = min(max(2*w.mountGap, 100*time.Millisecond), 30*time.Second)
			w.mountAt = time.Now().Add(w.mountGap)
			if ctx.Err() == nil {
				w.log.Warn("pod termination failed, will retry", "err", err)
			}
		})
	})
}

// stopContainers stops the running containers as upstream's kubelet does: the preStop hooks of all
// containers run concurrently; sidecars then wait until the app containers, and the sidecars after
// them, have exited, all within the grace period. It reports whether a container is still running.
// The caller must hold mu.
//
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#termination-of-sidecar-containers
func (w *worker) stopContainers(ctx context.Context) (running bool) {
	apps := false
	last := map[string]string{} // IDs of sidecars by name
	for i := range w.obs.Containers {
		st := &w.obs.Containers[i]
		if st.State != podstate.Running && st.State != podstate.Unknown {
			continue
		}
		running = true
		c, kind := podstate.Find(w.pod, st.Name)
		message, grace := "Stopping container "+st.Name, w.killGrace(st.ID)
		if c != nil && kind == podstate.Init && podutil.Sidecar(c) {
			last[st.Name] = st.ID
			w.startOrderedKill(ctx, st.ID, message, grace)
			continue
		}
		// Sidecars do not wait for init and ephemeral containers.
		apps = apps || c != nil && kind == podstate.App
		w.startKill(ctx, st.ID, message, grace)
	}
	if name := sidecarToStop(w.pod, last, apps); name != "" {
		w.allowStop(last[name])
	}
	return running
}

// sidecarToStop returns the next of the running sidecars to stop: the last one, if no app container
// is running. It returns "" if there is none. sidecars are container IDs by name.
func sidecarToStop(pod *v1.Pod, sidecars map[string]string, apps bool) string {
	if apps {
		return ""
	}
	for i := range slices.Backward(pod.Spec.InitContainers) {
		if name := pod.Spec.InitContainers[i].Name; sidecars[name] != "" {
			return name
		}
	}
	return ""
}

// stopAll stops the pod's sandboxes.
func (w *worker) stopAll(ctx context.Context, pod *v1.Pod) (err error) {
	w.mu.Lock()
	began := w.timing.terminationStarted
	w.mu.Unlock()
	ctx, end := w.host.span(ctx, pod, spanTerminating, "", began)
	defer func() { end(err) }()
	// An interrupted operation may have created containers.
	obs, err := w.host.CRI.Observe(ctx, w.uid)
	if err != nil {
		return err
	}
	for i := range obs.Containers {
		if s := obs.Containers[i].State; s == podstate.Running || s == podstate.Unknown {
			w.update(func() { w.dirty = true })
			return nil
		}
	}
	for i, s := range obs.Sandboxes {
		if s.Ready || i == 0 {
			if err := w.host.stopSandbox(ctx, s.ID); err != nil {
				return err
			}
		}
	}
	w.update(func() {
		for i := range w.obs.Sandboxes {
			w.obs.Sandboxes[i].Ready = false
		}
		w.final = cleanUp
	})
	return nil
}

// cgroupRemovalTimeout is how long the last processes of a pod may take to leave its cgroup.
const cgroupRemovalTimeout = 5 * time.Second

// tearDown releases the pod's devices and removes its volumes and cgroup.
func (w *worker) tearDown(ctx context.Context, pod *v1.Pod) (err error) {
	began := time.Now()
	ctx, end := w.host.span(ctx, pod, spanTerminated, "", began)
	defer func() { end(err) }()
	w.host.Objects.SetReferences(w.uid, nil, nil)
	if w.host.Claims != nil {
		if err := w.host.Claims.Release(ctx, w.uid); err != nil {
			return err
		}
	}
	if err := w.host.Volumes.TearDown(ctx, w.uid); err != nil {
		return err
	}
	if w.host.Limits.Cgroups != nil {
		ctx, cancel := context.WithTimeout(ctx, cgroupRemovalTimeout)
		defer cancel()
		for _, cgroup := range w.host.cgroups.candidates(pod) {
			if err := w.host.Limits.Cgroups.Remove(ctx, cgroup); err != nil {
				// The cgroup is still in use. Start again with the containers.
				w.update(func() { w.stage, w.final, w.dirty = terminating, stopSandboxes, true })
				return err
			}
		}
		w.host.weights.update()
	}
	w.update(func() { w.final = deleteObject })
	w.clean()
	w.host.Metrics.OperationFinished(telemetry.Terminated, time.Since(began))
	if w.host.Resources != nil {
		w.host.Resources.PodTerminated(w.uid)
	}
	return nil
}

// deletePod deletes the API object of a terminated pod that has a deletion timestamp.
func (w *worker) deletePod(ctx context.Context, pod *v1.Pod) error {
	zero := int64(0)
	uid := pod.UID
	err := w.host.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod: %w", err)
	}
	w.update(func() { w.final = removeAll })
	return nil
}

// removeAll removes sandboxes, containers and logs of a pod whose object is deleted.
func (w *worker) removeAll(ctx context.Context, pod *v1.Pod) error {
	if err := w.removeContainersAndLogs(ctx, pod); err != nil {
		return err
	}
	w.update(func() { w.final = allDone })
	return nil
}

// removeContainersAndLogs removes sandboxes, containers and logs.
func (w *worker) removeContainersAndLogs(ctx context.Context, pod *v1.Pod) error {
	obs, err := w.host.CRI.Observe(ctx, w.uid)
	if err != nil {
		return err
	}
	for i := range obs.Containers {
		c := &obs.Containers[i]
		if c.State == podstate.Running || c.State == podstate.Unknown {
			if _, err := w.host.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
				return fmt.Errorf("stopping container: %w", err)
			}
		}
		if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("removing container: %w", err)
		}
		w.host.unlinkLog(pod, c.Name, c.ID)
	}
	for _, s := range obs.Sandboxes {
		if err := w.host.stopSandbox(ctx, s.ID); err != nil {
			return err
		}
		if _, err := w.host.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("removing sandbox: %w", err)
		}
	}
	if err := os.RemoveAll(w.host.Logs.Dir(pod)); err != nil {
		return fmt.Errorf("removing pod logs: %w", err)
	}
	return nil
}

func (h *host) unlinkLog(pod *v1.Pod, container, id string) {
	if h.Logs.Containers == "" {
		return
	}
	if err := os.Remove(h.logLink(pod, container, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.Log.Debug("removing log link failed", "path", filepath.Base(h.logLink(pod, container, id)), "err", err)
	}
}

// removeLog removes the log files of one attempt of a container.
func (h *host) removeLog(pod *v1.Pod, c *podstate.Container) {
	path := c.LogPath
	if path == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(h.Logs.Dir(pod), path)
	}
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return
	}
	for _, f := range append(old, path) {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.Log.Debug("removing log file of removed container failed", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "path", f, "err", err)
		}
	}
}
