package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// terminator executes the steps of a pod's termination after its containers have been stopped. A failed step
// is retried, so all steps are idempotent.
type terminator struct {
	*worker
	pod *v1.Pod
}

// run executes the step of the pod's termination that kind names, such as podmachine.StopSandboxes. The error is
// that of the step; the pod's state machine then retries the step with a back-off.
func (w *terminator) run(ctx context.Context, kind podmachine.OperationKind) error {
	switch kind {
	case podmachine.StopSandboxes:
		return w.stopSandboxes(ctx)
	case podmachine.CleanUp:
		return w.tearDown(ctx)
	case podmachine.Discard:
		if err := w.removeContainersAndLogs(ctx); err != nil {
			return err
		}
		w.ends.empty()
		return nil
	case podmachine.DeleteObject:
		return w.deleteObject(ctx)
	default:
		return w.removeContainersAndLogs(ctx)
	}
}

// stopSandboxes stops the pod's sandboxes: those that are ready and the newest one. It returns errStillRunning
// if an interrupted operation has left a running container, so that the containers are stopped again.
func (w *terminator) stopSandboxes(ctx context.Context) (err error) {
	w.mu.Lock()
	began := w.timing.terminationStarted
	w.mu.Unlock()
	ctx, end := w.host.span(ctx, w.pod, spanTerminating, "", began)
	defer func() { end(err) }()
	// An interrupted operation may have created containers.
	obs, err := w.host.CRI.Observe(ctx, w.uid)
	if err != nil {
		return err
	}
	for i := range obs.Containers {
		if s := obs.Containers[i].State; s == podstate.Running || s == podstate.Unknown {
			return errStillRunning
		}
	}
	for i, s := range obs.Sandboxes {
		if s.Ready || i == 0 {
			if err := w.host.stopSandbox(ctx, s.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// cgroupRemovalTimeout is how long the last processes of a pod may take to leave its cgroup.
const cgroupRemovalTimeout = 5 * time.Second

// tearDown releases the pod's ResourceClaims and devices, and removes its volumes and cgroup. It returns an
// error that wraps errStillRunning if a process remains in the cgroup for cgroupRemovalTimeout.
func (w *terminator) tearDown(ctx context.Context) (err error) {
	began := time.Now()
	ctx, end := w.host.span(ctx, w.pod, spanTerminated, "", began)
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
		for _, cgroup := range w.host.cgroups.candidates(w.pod) {
			if err := w.host.Limits.Cgroups.Remove(ctx, cgroup); err != nil {
				return fmt.Errorf("%w: %w", errStillRunning, err)
			}
		}
		w.host.weights.update()
	}
	w.ends.clean()
	w.host.Metrics.OperationFinished(telemetry.Terminated, time.Since(began))
	if w.host.Resources != nil {
		w.host.Resources.PodTerminated(w.uid)
	}
	return nil
}

// deleteObject deletes the API object of a terminated pod that has a deletion timestamp. An object that is
// already deleted or replaced by another pod of the same name is no error.
func (w *terminator) deleteObject(ctx context.Context) error {
	pod := w.pod
	zero := int64(0)
	uid := pod.UID
	err := w.host.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod: %w", err)
	}
	return nil
}

// removeContainersAndLogs removes the sandboxes, containers and logs of a terminated pod. It kills containers
// that still run.
func (w *terminator) removeContainersAndLogs(ctx context.Context) error {
	pod := w.pod
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
		w.host.logs.unlinkLog(pod, c.Name, c.ID)
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

// unlinkLog removes the link to the log of the container id. An error is only logged.
func (l *logFiles) unlinkLog(pod *v1.Pod, container, id string) {
	if l.Containers == "" {
		return
	}
	if err := os.Remove(l.logLink(pod, container, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		l.log.Debug("removing link to log of removed container failed; the dangling link remains until the next cleanup of logs, within minutes", "path", filepath.Base(l.logLink(pod, container, id)), "containerID", id, "err", err)
	}
}

// removeLog removes the log file of a removed container and its rotated files. Errors are only logged.
func (l *logFiles) removeLog(pod *v1.Pod, c *podstate.Container) {
	path := c.LogPath
	if path == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(l.Dir(pod), path)
	}
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return
	}
	for _, f := range append(old, path) {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.log.Debug("removing log file of removed container failed, leaving it until the pod is removed", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "path", f, "err", err)
		}
	}
}
