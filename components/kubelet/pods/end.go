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
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/podfacts"
)

// finalStep is how far the end of a pod has come. Each is done by a goroutine
// of its own; the loop goes on in between.
type finalStep int

const (
	stopSandboxes finalStep = iota
	cleanUp
	deleteObject
	removeAll
	allDone
)

// stepEnd does one step of a pod that is ending. The caller holds mu.
func (w *worker) stepEnd(ctx context.Context, now time.Time) (wakeAt time.Time, done bool) {
	soon := w.tellLate(now)
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
			w.background(ctx, w.stopAll)
			return time.Time{}, false
		}
		w.stage = stopped
	}
	if w.mountAt.After(now) {
		return w.mountAt, false
	}
	switch w.final {
	case cleanUp:
		w.background(ctx, w.tearDown)
	case deleteObject:
		switch {
		case w.gone || w.host.Kube == nil || IsStatic(w.pod):
			if w.gone {
				w.final = removeAll
				if w.renewed {
					w.final = allDone
				}
				w.kick()
			}
		case w.discards == unwanted || w.discards == going:
			w.discards = going
			w.background(ctx, w.discard)
		case w.pod.DeletionTimestamp != nil:
			// The last status goes first.
			if w.report.settled() {
				w.background(ctx, w.deletePod)
			}
		}
	case removeAll:
		w.background(ctx, w.removeAll)
	case allDone:
		return time.Time{}, true
	}
	return time.Time{}, false
}

// shortestPatience is how long a pod that the kubelet ends may take before that is
// told, however short its grace period is.
const shortestPatience = 10 * time.Second

// late is how long a pod that the kubelet ends may take: half as long again as its
// grace period. The caller holds mu.
func (w *worker) late() time.Duration {
	grace := int64(0)
	switch {
	case w.verdict.Grace != nil:
		grace = *w.verdict.Grace
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	return max(time.Duration(grace)*time.Second*3/2, shortestPatience)
}

// tellLate tells that a pod that the kubelet ends takes too long, and when it does
// so; zero: it does not any more. The caller holds mu.
func (w *worker) tellLate(now time.Time) time.Time {
	if w.stage == stopped {
		w.lateAt = time.Time{}
	}
	if w.lateAt.IsZero() || now.Before(w.lateAt) {
		return w.lateAt
	}
	w.lateAt = time.Time{}
	w.host.event(w.pod, "", true, "ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period.")
	return time.Time{}
}

// background runs one step of the end; what fails is tried again later.
func (w *worker) background(ctx context.Context, f func(ctx context.Context, pod *v1.Pod) error) {
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
				w.log.Warn("ending a pod failed, trying again", "error", err)
			}
		})
	})
}

// stopContainers stops what runs, as upstream's kubelet does: the preStop hooks of
// all containers run at once, beside each other; then sidecars wait until the app
// containers, and the sidecars after them, have ended, all within the grace period.
// It tells whether anything still runs. The caller holds mu.
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
		if c != nil && kind == podstate.Init && podfacts.Sidecar(c) {
			last[st.Name] = st.ID
			w.startOrderedKill(ctx, st.ID, message, grace)
			continue
		}
		// Nobody waits for init and ephemeral containers.
		apps = apps || c != nil && kind == podstate.App
		w.startKill(ctx, st.ID, message, grace)
	}
	if name := sidecarToStop(w.pod, last, apps); name != "" {
		w.takeTurn(last[name])
	}
	return running
}

// sidecarToStop is whose turn it is of the sidecars that run, which are by name: the
// last one's, when no app container runs any more; "" for none.
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
	began := w.timing.ends
	w.mu.Unlock()
	ctx, end := w.host.span(ctx, pod, spanTerminating, "", began)
	defer func() { end(err) }()
	// What a cut short operation left behind counts too.
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

// patience is how long the last processes of a pod may take to leave its cgroup.
const patience = 5 * time.Second

// tearDown takes back the pod's devices, volumes and cgroup.
func (w *worker) tearDown(ctx context.Context, pod *v1.Pod) (err error) {
	began := time.Now()
	ctx, end := w.host.span(ctx, pod, spanTerminated, "", began)
	defer func() { end(err) }()
	w.host.Objects.Refer(w.uid, nil, nil)
	if w.host.Claims != nil {
		if err := w.host.Claims.Release(ctx, w.uid); err != nil {
			return err
		}
	}
	if err := w.host.Volumes.TearDown(ctx, w.uid); err != nil {
		return err
	}
	if w.host.Limits.Cgroups != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for _, cgroup := range w.host.cgroupsOf(pod) {
			if err := w.host.Limits.Cgroups.Remove(ctx, cgroup); err != nil {
				// Someone is in it still: all is looked at again.
				w.update(func() { w.stage, w.final, w.dirty = terminating, stopSandboxes, true })
				return err
			}
		}
		w.host.Hooks.weigh()
	}
	w.update(func() { w.final = deleteObject })
	w.clean()
	w.host.Metrics.Worked(telemetry.Terminated, time.Since(began))
	if w.host.Hooks.Ended != nil {
		w.host.Hooks.Ended(w.uid)
	}
	return nil
}

// deletePod removes the API object of a pod that has ended and is to go.
func (w *worker) deletePod(ctx context.Context, pod *v1.Pod) error {
	zero := int64(0)
	uid := pod.UID
	err := w.host.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the pod's object: %w", err)
	}
	w.update(func() { w.final = removeAll })
	return nil
}

// removeAll removes sandboxes, containers and logs of a pod whose object is gone.
func (w *worker) removeAll(ctx context.Context, pod *v1.Pod) error {
	if err := w.empty(ctx, pod); err != nil {
		return err
	}
	w.update(func() { w.final = allDone })
	return nil
}

// empty removes sandboxes, containers and logs.
func (w *worker) empty(ctx context.Context, pod *v1.Pod) error {
	obs, err := w.host.CRI.Observe(ctx, w.uid)
	if err != nil {
		return err
	}
	for i := range obs.Containers {
		c := &obs.Containers[i]
		if c.State == podstate.Running || c.State == podstate.Unknown {
			if _, err := w.host.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
				return fmt.Errorf("stopping a container: %w", err)
			}
		}
		if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("removing a container: %w", err)
		}
		w.host.unlinkLog(pod, c.Name, c.ID)
	}
	for _, s := range obs.Sandboxes {
		if err := w.host.stopSandbox(ctx, s.ID); err != nil {
			return err
		}
		if _, err := w.host.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("removing a sandbox: %w", err)
		}
	}
	if err := os.RemoveAll(w.host.LogDir(pod)); err != nil {
		return fmt.Errorf("removing the pod's logs: %w", err)
	}
	return nil
}

func (h *Host) unlinkLog(pod *v1.Pod, container, id string) {
	if h.ContainerLogs == "" {
		return
	}
	if err := os.Remove(h.logLink(pod, container, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.Log.Debug("removing the link to a log failed", "path", filepath.Base(h.logLink(pod, container, id)), "error", err)
	}
}

// removeLog removes the log of one attempt at a container.
func (h *Host) removeLog(pod *v1.Pod, c *podstate.Container) {
	path := c.LogPath
	if path == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(h.LogDir(pod), path)
	}
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return
	}
	for _, f := range append(old, path) {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.Log.Debug("removing an old log failed", "path", f, "error", err)
		}
	}
}
