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
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// isNotFound reports whether err, or the error that it wraps directly, is the runtime's NotFound.
func isNotFound(err error) bool { return cri.IsNotFound(errors.Unwrap(err)) || cri.IsNotFound(err) }

// startOperation starts the operation o that the pod's state machine has decided on, in a separate goroutine, which
// reports the outcome to the state machine. Starting the pod and updating its volumes also begin to watch the
// ConfigMaps and Secrets of the pod. The caller must hold w.mu, and no other operation on the pod may be in
// progress.
func (w *worker) startOperation(ctx context.Context, o podmachine.Operation) {
	ctx, cancel := context.WithCancel(ctx)
	w.cancelOperation = cancel
	pod := w.machine.Pod
	if o.Kind == podmachine.RefreshVolumes || o.Kind == podmachine.Start && (pod.Generation != 0 || w.host.Kube == nil) {
		w.host.Objects.SetReferences(w.uid, objectcache.Of(pod), w.objectsChanged)
	}
	w.wait.Go(func() {
		defer cancel()
		switch o.Kind {
		case podmachine.Start:
			w.finish(ctx, o.Kind, (&starter{worker: w, pod: pod}).start(ctx, &o.Plan, o.Starts))
		case podmachine.RemoveContainers:
			w.finish(ctx, o.Kind, w.removeContainers(ctx, o.Remove))
		case podmachine.RefreshVolumes:
			w.finish(ctx, o.Kind, (&starter{worker: w, pod: pod}).refreshVolumes(ctx))
		case podmachine.ResizePod:
			w.resize(ctx, &o.Resize)
		default:
			w.finish(ctx, o.Kind, (&terminator{worker: w, pod: pod}).run(ctx, o.Kind))
		}
	})
}

// errStillRunning is the error of a step of the termination that has found running processes.
var errStillRunning = errors.New("processes of the pod are still running")

// finish reports to the pod's state machine that the operation of that kind has finished, logs a failure, and wakes
// the worker. err is the result of the operation. If the operation was cancelled or may have had an unobserved
// effect, the worker reads the whole state of the pod from the runtime.
func (w *worker) finish(ctx context.Context, kind podmachine.OperationKind, err error) {
	outcome := podmachine.Succeeded
	switch {
	case errors.Is(err, errStillRunning):
		outcome = podmachine.StillRunning
	case err != nil && ctx.Err() != nil:
		outcome = podmachine.Interrupted
	case err != nil:
		outcome = podmachine.Failed
	}
	switch {
	case outcome == podmachine.Succeeded || outcome == podmachine.Interrupted || err == errStillRunning: //nolint:errorlint // a wrapped one has a cause
	case kind == podmachine.Start:
		w.log.Debug("starting sandbox or containers of pod failed, retrying with back-off", "podUID", w.uid, "err", err)
	case kind == podmachine.RemoveContainers:
		w.log.Warn("removing exited containers of pod failed; the restart of all its containers waits for that, retrying in a second", "podUID", w.uid, "err", err)
	case kind > podmachine.ResizePod:
		w.log.Warn("step of pod termination failed; the pod remains on the node until a retry succeeds, retrying with back-off", "podUID", w.uid, "step", kind.String(), "err", err)
	}
	w.update(func() {
		// An interrupted operation, or a call that was lost with the runtime, may have had an effect.
		if ctx.Err() != nil || cri.IsUnavailable(err) || outcome == podmachine.StillRunning || kind == podmachine.RemoveContainers {
			w.fresh.all = true
		}
		w.cancelOperation = nil
		w.machine.Finish(outcome, time.Now())
	})
}

// removeContainers removes the exited containers ids, so that all containers of the pod can be restarted. A
// container that does not exist any more is ignored. Logs are kept.
func (w *worker) removeContainers(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if _, err := w.host.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil && !cri.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// starter starts a pod: it sets up the volumes, creates the sandbox and starts containers.
type starter struct {
	*worker
	pod *v1.Pod
}

// start executes the operation podmachine.Start and records its metrics and trace span: it sets up the volumes and,
// if plan requires it, a new sandbox, and starts the containers in starts.
func (w *starter) start(ctx context.Context, plan *podstate.Plan, starts []podstate.Start) error {
	began, kind := time.Now(), telemetry.Sync
	if plan.NewSandbox && plan.Attempt == 0 {
		kind = telemetry.Create
	}
	spanned, end := w.host.span(ctx, w.pod, spanSync, kind, time.Time{})
	err := w.operate(spanned, plan, starts)
	end(err)
	w.host.Metrics.OperationFinished(kind, time.Since(began))
	return err
}

// operate sets up the volumes, creates the sandbox if plan requires it, and starts the containers in starts in
// order. It fails, with an event, while pods cannot be connected to the pod network, unless the pod uses the
// host network. A failure before the containers increases the back-off of the pod, except if the runtime is
// unavailable; the failure of a container delays only that container. Both are retried by later steps of the
// worker.
func (w *starter) operate(ctx context.Context, plan *podstate.Plan, starts []podstate.Start) error {
	pod := w.pod
	if network := w.host.Network; network != nil && !pod.Spec.HostNetwork {
		if problem := network.NetworkProblem(); problem != "" {
			w.host.event(pod, "", true, "NetworkNotReady", "network is not ready: "+problem)
			w.failPreparation()
			return errors.New("network is not ready: " + problem)
		}
	}
	if err := w.prepare(ctx); err != nil {
		w.failPreparation()
		return err
	}
	for _, id := range plan.StopSandboxes {
		if err := w.host.stopSandbox(ctx, id); err != nil {
			if !cri.IsUnavailable(err) {
				w.failPreparation()
			}
			return err
		}
	}
	if plan.NewSandbox {
		if err := w.replaceSandbox(ctx, plan.Attempt); err != nil {
			return err
		}
	}
	w.mu.Lock()
	w.machine.Retry.Reset()
	w.mu.Unlock()
	return w.startContainers(ctx, starts, !plan.NewSandbox)
}

// startContainers starts containers in order. It returns an error and skips the remaining ones if ctx is done, the
// runtime is unavailable or an init container fails. Other containers that fail are retried later. recorded is true
// if the metric of the pod's first failed start was recorded before; otherwise the first failure records it.
func (w *starter) startContainers(ctx context.Context, starts []podstate.Start, recorded bool) error {
	for _, s := range starts {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := w.startContainer(ctx, s)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if cri.IsUnavailable(err) {
			return err
		}
		if !recorded {
			recorded = true
			w.host.Metrics.FirstStartFailed(w.pod)
		}
		if _, kind := podstate.Find(w.pod, s.Name); kind == podstate.Init {
			return err
		}
	}
	return nil
}

// replaceSandbox creates the pod's sandbox with the attempt number; 0 is the first sandbox. A failure emits
// an event and increases the back-off, unless ctx is done or the runtime is unavailable.
func (w *starter) replaceSandbox(ctx context.Context, attempt uint32) error {
	if attempt > 0 {
		w.host.event(w.pod, "", false, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	err := w.makeSandbox(ctx, attempt)
	if ctx.Err() == nil && !cri.IsUnavailable(err) {
		w.host.Metrics.PodStarting(w.pod, err)
	}
	if err == nil {
		return nil
	}
	// The sandbox may exist nevertheless, and another one with its name would be rejected.
	w.update(func() { w.fresh.all = true })
	if ctx.Err() == nil && !cri.IsUnavailable(err) {
		reason, message := "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error()
		if made := (*sandboxStatusError)(nil); errors.As(err, &made) {
			reason, message = "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(made.err)
		}
		w.host.event(w.pod, "", true, reason, message)
		w.failPreparation()
	}
	return err
}

// failPreparation increases the back-off before the next attempt to set up the volumes and the sandbox.
func (w *starter) failPreparation() {
	w.update(func() { w.machine.PrepareFailed(time.Now()) })
}

// prepare creates the pod's directories and cgroup, prepares its ResourceClaims, and sets up its volumes, before
// its sandbox is created. It does nothing if the volumes are set up and up to date. Failures emit events.
func (w *starter) prepare(ctx context.Context) error {
	pod := w.pod
	w.mu.Lock()
	mounted := w.machine.Volumes.Mounted && !w.machine.Volumes.Stale
	w.mu.Unlock()
	if mounted {
		return nil
	}
	if err := w.host.makeDirs(pod); err != nil {
		w.host.event(pod, "", true, "Failed", "error making pod data directories: "+err.Error())
		return err
	}
	if w.host.Limits.Cgroups != nil {
		if err := w.host.Limits.Cgroups.Create(w.host.cgroups.ofPod(pod), w.host.limits.podResources(pod)); err != nil {
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
	return w.mount(ctx)
}

// makeDirs creates the directories of the pod's volumes and logs.
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

// apiText returns the message of an error of the API server without the text of wrapping errors, or the text
// of any other error.
func apiText(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// refreshVolumes is the operation podmachine.RefreshVolumes: it updates the contents of the volumes of a
// running pod, for example after a change of a ConfigMap.
func (w *starter) refreshVolumes(ctx context.Context) error {
	if err := w.host.makeDirs(w.pod); err != nil {
		return err
	}
	return w.mount(ctx)
}

// uncancelled returns a context without the cancellation of ctx, for a call that the runtime completes even
// if the kubelet cancels it. The termination of a pod waits for the response, so that nothing is created
// after it. The CRI client has a timeout for such calls. If ctx is already done, the returned context is done
// too.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithCancel(ctx)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// makeSandbox creates the pod's sandbox with the attempt number, and adds it to the observed state. A sandbox
// without an IP address that needs one is an error. The error is a sandboxStatusError if the sandbox was created
// but its status cannot be read.
func (w *starter) makeSandbox(ctx context.Context, attempt uint32) error {
	pod := w.pod
	cfg, err := w.host.configs.sandboxConfig(pod, attempt)
	if err != nil {
		return err
	}
	handler, err := w.host.configs.runtimeHandler(ctx, pod)
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
	w.machine.Containers.SandboxCreated(box)
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

// runtimeHandler returns the runtime handler of the pod's RuntimeClass, or "", the default handler, if the pod
// has none. It reads the RuntimeClass from the API, and returns an error if that fails or no API server is
// configured.
func (t *translator) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	if t.kube == nil {
		return "", fmt.Errorf("RuntimeClass %q: no API server is configured", *name)
	}
	class, err := t.kube.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get sandbox runtime: failed to lookup RuntimeClass %q: %w", *name, err)
	}
	return class.Handler, nil
}

// stopSandbox stops the sandbox id. A sandbox that does not exist is ignored.
func (h *host) stopSandbox(ctx context.Context, id string) error {
	_, err := h.CRI.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stopping sandbox: %w", err)
	}
	return nil
}
