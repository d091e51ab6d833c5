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
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

func isNotFound(err error) bool { return cri.IsNotFound(errors.Unwrap(err)) || cri.IsNotFound(err) }

// Bounds of the back-off of failed preparations of pods, such as volume setup.
const (
	minMountBackoff = 500 * time.Millisecond
	maxMountBackoff = 2*time.Minute + 2*time.Second
)

// startOperation starts the operation of plan in a separate goroutine. The caller must hold mu, and no
// other operation may be running.
func (w *worker) startOperation(ctx context.Context, plan podstate.Plan, starts []podstate.Start) {
	ctx, cancel := context.WithCancel(ctx)
	op := &operation{cancel: cancel}
	w.op = op
	pod := w.pod
	if pod.Generation != 0 || w.host.Kube == nil {
		w.host.Objects.SetReferences(w.uid, w.host.refs(pod), w.objectsChanged)
	}
	w.report.wait.Go(func() {
		defer cancel()
		began, kind := time.Now(), telemetry.Sync
		if plan.NewSandbox && plan.Attempt == 0 {
			kind = telemetry.Create
		}
		spanned, end := w.host.span(ctx, pod, spanSync, kind, time.Time{})
		err := w.operate(spanned, pod, plan, starts)
		end(err)
		w.host.Metrics.OperationFinished(kind, time.Since(began))
		w.update(func() {
			w.op = nil
			if ctx.Err() != nil {
				// The operation may have been interrupted.
				w.dirty = true
			}
			if err != nil && ctx.Err() == nil {
				w.log.Debug("starting pod failed", "err", err)
			}
			if cri.IsUnavailable(err) {
				// The result of the last call is observed when the runtime is available again.
				w.dirty = true
			}
		})
	})
}

// removeRetryInterval is the delay before a failed removal of containers is retried.
const removeRetryInterval = time.Second

// startRemove removes exited containers in a separate goroutine, so that all containers of the pod
// can be restarted. Their logs are kept. The caller must hold mu, and no other operation may be
// running.
func (w *worker) startRemove(ctx context.Context, ids []string) {
	ctx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel}
	// Keep the attempt number, because the runtime will report the containers as removed.
	for _, id := range ids {
		if st := w.obs.ByID(id); st != nil {
			w.slots[st.Name] = podstate.Slot{Next: max(w.slots[st.Name].Next, st.Attempt+1)}
		}
	}
	w.report.wait.Go(func() {
		defer cancel()
		var err error
		for _, id := range ids {
			if _, err = w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil && !cri.IsNotFound(err) {
				break
			}
			err = nil
		}
		w.update(func() {
			w.op, w.dirty = nil, true
			if err != nil && ctx.Err() == nil {
				w.log.Warn("removing container before restart of all failed, will retry", "err", err)
				w.removeAt = time.Now().Add(removeRetryInterval)
			}
		})
	})
}

// operate sets up the volumes, creates the sandbox if required, and starts containers in order.
// Failures are recorded in the worker's state for the next step.
func (w *worker) operate(ctx context.Context, pod *v1.Pod, plan podstate.Plan, starts []podstate.Start) error {
	if h := w.host; h.Network != nil && !pod.Spec.HostNetwork {
		if problem := h.Network.NetworkProblem(); problem != "" {
			h.event(pod, "", true, "NetworkNotReady", "network is not ready: "+problem)
			w.failMount()
			return errors.New("network is not ready: " + problem)
		}
	}
	if err := w.prepare(ctx, pod); err != nil {
		w.failMount()
		return err
	}
	for _, id := range plan.StopSandboxes {
		if err := w.host.stopSandbox(ctx, id); err != nil {
			if !cri.IsUnavailable(err) {
				w.failMount()
			}
			return err
		}
	}
	if plan.NewSandbox {
		if plan.Attempt > 0 {
			w.host.event(pod, "", false, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
		err := w.makeSandbox(ctx, pod, plan.Attempt)
		if ctx.Err() == nil && !cri.IsUnavailable(err) {
			w.host.Metrics.PodStarting(pod, err)
		}
		if err != nil {
			// The sandbox may exist nevertheless, and another one with its name would be rejected.
			w.update(func() { w.dirty = true })
			if ctx.Err() == nil && !cri.IsUnavailable(err) {
				reason, message := "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error()
				if made := (*sandboxStatusError)(nil); errors.As(err, &made) {
					reason, message = "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(made.err)
				}
				w.host.event(pod, "", true, reason, message)
				w.failMount()
			}
			return err
		}
	}
	// Later failures affect only one container.
	w.mu.Lock()
	w.mountGap, w.mountAt = 0, time.Time{}
	w.mu.Unlock()
	recorded := !plan.NewSandbox
	for _, s := range starts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := w.startContainer(ctx, pod, s); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if cri.IsUnavailable(err) {
				return err
			}
			if !recorded {
				recorded = true
				w.host.Metrics.FirstStartFailed(pod)
			}
			_, kind := podstate.Find(pod, s.Name)
			if kind == podstate.Init {
				return err
			}
		}
	}
	return nil
}

// failMount increases the back-off before the next attempt.
func (w *worker) failMount() {
	w.update(func() {
		w.mountGap = min(max(2*w.mountGap, minMountBackoff), maxMountBackoff)
		w.mountAt = time.Now().Add(w.mountGap)
		w.mounted = false
	})
}

// prepare creates the directories and the cgroup, prepares ResourceClaims, and sets up the volumes.
func (w *worker) prepare(ctx context.Context, pod *v1.Pod) error {
	w.mu.Lock()
	mounted := w.mounted && !w.stale
	w.mu.Unlock()
	if mounted {
		return nil
	}
	if err := w.host.makeDirs(pod); err != nil {
		w.host.event(pod, "", true, "Failed", "error making pod data directories: "+err.Error())
		return err
	}
	if w.host.Limits.Cgroups != nil {
		if err := w.host.Limits.Cgroups.Create(w.host.cgroups.ofPod(pod), w.host.podResources(pod)); err != nil {
			w.host.event(pod, "", true, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
			return err
		}
	}
	if w.host.Claims != nil && (len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil) {
		if err := w.host.Claims.Prepare(ctx, pod); err != nil {
			w.host.event(pod, "", true, "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: "+apiText(err))
			return err
		}
	}
	return w.mount(ctx, pod, true)
}

func (h *host) makeDirs(pod *v1.Pod) error {
	for _, dir := range []string{filepath.Join(h.Volumes.PodDir(pod.UID), "volumes"), h.Logs.Dir(pod)} {
		mode := os.FileMode(0o750)
		if dir == h.Logs.Dir(pod) {
			mode = 0o755
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("creating pod directories: %w", err)
		}
	}
	return nil
}

func apiText(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// refreshVolumes updates volumes if they are stale or a token must be renewed, and returns when to
// call it again. The caller must hold mu.
func (w *worker) refreshVolumes(ctx context.Context, now time.Time) time.Time {
	var next time.Time
	for _, r := range w.volumes {
		if !r.Refresh.IsZero() && (next.IsZero() || r.Refresh.Before(next)) {
			next = r.Refresh
		}
	}
	due := w.stale || (!next.IsZero() && !next.After(now))
	if !due || w.obs.Sandbox() == nil {
		return next
	}
	if w.mountAt.After(now) {
		return w.mountAt
	}
	ctx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel}
	pod := w.pod
	w.host.Objects.SetReferences(w.uid, w.host.refs(pod), w.objectsChanged)
	w.report.wait.Go(func() {
		defer cancel()
		err := w.host.makeDirs(pod)
		if err == nil {
			err = w.mount(ctx, pod, true)
		}
		w.update(func() {
			w.op = nil
			if err != nil && ctx.Err() == nil {
				w.stale = true
				w.mountGap = min(max(2*w.mountGap, minMountBackoff), maxMountBackoff)
				w.mountAt = time.Now().Add(w.mountGap)
			} else if err == nil {
				w.mountGap, w.mountAt = 0, time.Time{}
			}
		})
	})
	return next
}

// uncancelled returns the context of a call that the runtime completes even if it is cancelled.
// The termination of a pod waits for the response, so that nothing is created after it. The calls
// have a timeout.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithCancel(ctx)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// makeSandbox creates the pod's sandbox and adds it to the observed state.
func (w *worker) makeSandbox(ctx context.Context, pod *v1.Pod, attempt uint32) error {
	cfg, err := w.host.sandboxConfig(pod, attempt)
	if err != nil {
		return err
	}
	handler, err := w.host.runtimeHandler(ctx, pod)
	if err != nil {
		return err
	}
	call, cancel := uncancelled(ctx)
	defer cancel()
	began := time.Now()
	resp, err := w.host.CRI.Runtime.RunPodSandbox(call, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	w.host.Metrics.SandboxMade(handler, time.Since(began), err)
	if cri.IsUnavailable(err) {
		return err
	}
	if err != nil {
		return errors.New(cri.Message(err))
	}
	box, err := w.host.CRI.Sandbox(ctx, resp.PodSandboxId)
	if err != nil {
		return &sandboxStatusError{err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.obsGeneration++
	for i := range w.obs.Sandboxes {
		w.obs.Sandboxes[i].Ready = false
	}
	w.obs.Sandboxes = append([]podstate.Sandbox{box}, w.obs.Sandboxes...)
	if box.Lost {
		// It is replaced by another one, which probably has no address either, hence the back-off.
		return errors.New("the sandbox has no IP address")
	}
	return nil
}

// sandboxStatusError is the error of a sandbox that was created but whose status is unavailable.
type sandboxStatusError struct{ err error }

func (u *sandboxStatusError) Error() string { return u.err.Error() }

func (u *sandboxStatusError) Unwrap() error { return u.err }

// runtimeHandler returns the runtime handler of the pod's RuntimeClass.
func (h *host) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if h.Kube == nil {
		return "", fmt.Errorf("RuntimeClass %q: no API server is configured", *name)
	}
	class, err := h.Kube.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get sandbox runtime: failed to lookup RuntimeClass %q: %w", *name, err)
	}
	return class.Handler, nil
}

func (h *host) stopSandbox(ctx context.Context, id string) error {
	_, err := h.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stopping sandbox: %w", err)
	}
	return nil
}
