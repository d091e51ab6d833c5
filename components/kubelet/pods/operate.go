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
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/telemetry"
)

func isNotFound(err error) bool { return cri.IsNotFound(errors.Unwrap(err)) || cri.IsNotFound(err) }

// Bounds of the back-off of volumes that cannot be set up.
const (
	mountFirst = 500 * time.Millisecond
	mountMost  = 2*time.Minute + 2*time.Second
)

// startOp starts what plan wants in a goroutine of its own. The caller holds
// mu; there is no other operation.
func (w *worker) startOp(ctx context.Context, plan podstate.Plan, starts []podstate.Start) {
	ctx, cancel := context.WithCancel(ctx)
	op := &operation{cancel: cancel}
	w.op = op
	pod := w.pod
	if pod.Generation != 0 || w.host.Kube == nil {
		w.host.Objects.Refer(w.uid, w.host.refs(pod), w.objectsChanged)
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
		w.host.Metrics.Worked(kind, time.Since(began))
		w.update(func() {
			w.op = nil
			if ctx.Err() != nil {
				// Something may have been left half done.
				w.dirty = true
			}
			if err != nil && ctx.Err() == nil {
				w.log.Debug("starting a pod failed", "error", err)
			}
			if cri.IsGone(err) {
				// What came of the last call is seen when it is there again.
				w.dirty = true
			}
		})
	})
}

// removeAgain is how long it takes until containers that could not be removed
// are tried again.
const removeAgain = time.Second

// startRemove removes containers, all of which have ended, in a goroutine of its
// own, so that all are started anew. Their logs stay. The caller holds mu; there
// is no other operation.
func (w *worker) startRemove(ctx context.Context, ids []string) {
	ctx, cancel := context.WithCancel(ctx)
	w.op = &operation{cancel: cancel}
	// The runtime tells of each that has gone, and it is not known any more.
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
				w.log.Warn("removing a container to restart all failed, trying again", "error", err)
				w.removeAt = time.Now().Add(removeAgain)
			}
		})
	})
}

// operate mounts, makes the sandbox if one is wanted, and starts containers in
// order. What goes wrong is remembered where the next step finds it.
func (w *worker) operate(ctx context.Context, pod *v1.Pod, plan podstate.Plan, starts []podstate.Start) error {
	if h := w.host; h.Hooks.NetworkProblem != nil && !pod.Spec.HostNetwork {
		if problem := h.Hooks.NetworkProblem(); problem != "" {
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
			if !cri.IsGone(err) {
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
		if ctx.Err() == nil && !cri.IsGone(err) {
			w.host.Metrics.PodStarting(pod, err)
		}
		if err != nil {
			// It may be there nevertheless: another of its name would be refused.
			w.update(func() { w.dirty = true })
			if ctx.Err() == nil && !cri.IsGone(err) {
				reason, message := "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error()
				if made := (*unseen)(nil); errors.As(err, &made) {
					reason, message = "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(made.err)
				}
				w.host.event(pod, "", true, reason, message)
				w.failMount()
			}
			return err
		}
	}
	// From here on what fails is one container's affair.
	w.mu.Lock()
	w.mountGap, w.mountAt = 0, time.Time{}
	w.mu.Unlock()
	told := !plan.NewSandbox
	for _, s := range starts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := w.startContainer(ctx, pod, s); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if cri.IsGone(err) {
				return err
			}
			if !told {
				told = true
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

// failMount makes the next try wait.
func (w *worker) failMount() {
	w.update(func() {
		w.mountGap = min(max(2*w.mountGap, mountFirst), mountMost)
		w.mountAt = time.Now().Add(w.mountGap)
		w.mounted = false
	})
}

// prepare makes directories, the cgroup and the volumes.
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
		if err := w.host.Limits.Cgroups.Create(w.host.cgroupOf(pod), w.host.podResources(pod)); err != nil {
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

func (h *Host) makeDirs(pod *v1.Pod) error {
	for _, dir := range []string{filepath.Join(h.Volumes.PodDir(pod.UID), "volumes"), h.LogDir(pod)} {
		mode := os.FileMode(0o750)
		if dir == h.LogDir(pod) {
			mode = 0o755
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("making the pod's directories: %w", err)
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

// refreshVolumes brings volumes up to date when they are stale or a token is
// about to expire, and returns when it wants to be called again. The caller
// holds mu.
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
	w.host.Objects.Refer(w.uid, w.host.refs(pod), w.objectsChanged)
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
				w.mountGap = min(max(2*w.mountGap, mountFirst), mountMost)
				w.mountAt = time.Now().Add(w.mountGap)
			} else if err == nil {
				w.mountGap, w.mountAt = 0, time.Time{}
			}
		})
	})
	return next
}

// carriedThrough is the context of calls that the runtime finishes even if
// nobody waits for it any more: a pod that ends waits for their answer, so that
// nothing appears behind its back. The calls themselves are bounded.
func carriedThrough(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithCancel(ctx)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// makeSandbox makes the pod's sandbox and remembers it.
func (w *worker) makeSandbox(ctx context.Context, pod *v1.Pod, attempt uint32) error {
	cfg, err := w.host.sandboxConfig(pod, attempt)
	if err != nil {
		return err
	}
	handler, err := w.host.runtimeHandler(ctx, pod)
	if err != nil {
		return err
	}
	call, cancel := carriedThrough(ctx)
	defer cancel()
	began := time.Now()
	resp, err := w.host.CRI.Runtime.RunPodSandbox(call, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	w.host.Metrics.SandboxMade(handler, time.Since(began), err)
	if cri.IsGone(err) {
		return err
	}
	if err != nil {
		return errors.New(cri.Message(err))
	}
	box, err := w.host.CRI.Sandbox(ctx, resp.PodSandboxId)
	if err != nil {
		return &unseen{err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learned++
	for i := range w.obs.Sandboxes {
		w.obs.Sandboxes[i].Ready = false
	}
	w.obs.Sandboxes = append([]podstate.Sandbox{box}, w.obs.Sandboxes...)
	if box.Lost {
		// Another takes its place, and is as likely to have none.
		return errors.New("the sandbox has no IP address")
	}
	return nil
}

// unseen is that a sandbox was made and the runtime does not tell how it is.
type unseen struct{ err error }

func (u *unseen) Error() string { return u.err.Error() }

func (u *unseen) Unwrap() error { return u.err }

// runtimeHandler is what the pod's RuntimeClass names.
func (h *Host) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if h.Kube == nil {
		return "", fmt.Errorf("RuntimeClass %q: no API server to get it from", *name)
	}
	class, err := h.Kube.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get sandbox runtime: failed to lookup RuntimeClass %q: %w", *name, err)
	}
	return class.Handler, nil
}

func (h *Host) stopSandbox(ctx context.Context, id string) error {
	_, err := h.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stopping a sandbox: %w", err)
	}
	return nil
}
