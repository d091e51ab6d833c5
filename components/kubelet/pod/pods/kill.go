package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podmachine"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/internal/base/backoff"
)

// stopping is a container that is being stopped. Its goroutine runs the preStop hook, waits for the sidecar's turn
// if the container is a sidecar, and stops the container through the runtime.
type stopping struct {
	podmachine.Kill
	w      *worker
	pod    *v1.Pod
	ip     string // of the pod, for the preStop hook
	cancel context.CancelFunc
	done   chan struct{} // closed when the container was stopped or the stop was cancelled
	// turn is closed when a sidecar may be stopped; at the end of the grace period it is stopped
	// regardless. It is nil for other containers.
	turn chan struct{}
}

// minGrace is the minimum time in seconds between the stop signal and the kill of a container, even if its
// grace period is shorter, or the preStop hook or waiting for other containers has used it up.
const minGrace = 2

// startStop stops the container that k names in a separate goroutine. If the container is already being
// stopped, the new stop, which has a shorter grace period, replaces the one in progress; otherwise a Killing
// event is emitted. When the container was stopped, the pod's state machine is notified and the worker is
// woken. The caller must hold w.mu.
func (w *worker) startStop(ctx context.Context, k podmachine.Kill) {
	if before := w.stops[k.ID]; before != nil {
		before.cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stopping{Kill: k, w: w, pod: w.machine.Pod, ip: w.podIP(), cancel: cancel, done: make(chan struct{})}
	if k.Ordered {
		s.turn = make(chan struct{})
	}
	w.stops[k.ID] = s
	if !k.Shortened {
		w.host.event(s.pod, k.Name, false, "Killing", k.Message)
	}
	w.wait.Go(func() {
		defer cancel()
		defer close(s.done)
		s.run(ctx)
		w.update(func() {
			if w.stops[k.ID] == s {
				delete(w.stops, k.ID)
				w.machine.KillFinished(k.ID)
			}
		})
	})
}

// allow permits that a sidecar gets the stop signal, because the containers that it serves have exited. It
// has no effect on other containers. It must not be called twice. The caller must hold the worker's mu.
func (s *stopping) allow() {
	if s.turn != nil {
		close(s.turn)
	}
}

// run runs the preStop hook, waits until the containers that a sidecar serves have exited if the container is a
// sidecar, and stops the container with what is left of the grace period, but at least minGrace. It retries
// with a back-off until the container has exited or ctx is done.
func (s *stopping) run(ctx context.Context) {
	left := time.Duration(s.Grace) * time.Second
	left -= s.runPreStop(ctx, left)
	if s.turn != nil && left > 0 {
		began := time.Now()
		over := time.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-s.turn:
		case <-over.C:
		}
		over.Stop()
		left -= time.Since(began)
	}
	left = max(left, minGrace*time.Second)
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second}
	for ctx.Err() == nil {
		if s.stop(ctx, left) {
			return
		}
		retry.Pause(ctx)
	}
}

// runPreStop runs the container's preStop hook, for at most timeout, and returns how long the hook took. It
// returns 0 if there is no hook, if the grace period is 0, or if a replaced stop has already run the hook. A
// hook that fails is logged and causes an event; a hook that exceeds the timeout does not.
func (s *stopping) runPreStop(ctx context.Context, timeout time.Duration) time.Duration {
	c, kind := podstate.Find(s.pod, s.Name)
	if c == nil || kind == podstate.Ephemeral || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || s.Grace <= 0 || s.Shortened {
		return 0
	}
	began := time.Now()
	hookCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	h := s.w.host
	err := h.Prober.Hook(hookCtx, probe.Target{Pod: s.pod, Container: c, ContainerID: s.ID, PodIP: s.ip, Warn: h.podWarner(s.pod)}, c.Lifecycle.PreStop)
	if err != nil && ctx.Err() == nil && hookCtx.Err() == nil {
		s.w.log.Info("preStop hook of container failed; the container is stopped nevertheless, the hook is not run again", "container", s.Name, "containerID", s.ID, "err", err)
		h.event(s.pod, s.Name, true, "FailedPreStopHook", "PreStopHook failed")
	}
	return time.Since(began)
}

// stop stops the container through the runtime, which kills it after grace, and reports whether it has exited,
// was never started, or does not exist any more. Otherwise the caller retries.
func (s *stopping) stop(ctx context.Context, grace time.Duration) bool {
	seconds := int64((grace + time.Second - 1) / time.Second)
	_, err := s.w.host.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: s.ID, Timeout: seconds})
	if err != nil && !cri.IsNotFound(err) {
		if ctx.Err() == nil && !cri.IsUnavailable(err) {
			s.w.log.Warn("container runtime failed to stop container; the container may still run and its pod does not terminate, retrying until the container has exited", "container", s.Name, "containerID", s.ID, "err", err)
			s.w.host.event(s.pod, "", true, "FailedKillPod", fmt.Sprintf("error killing pod: failed to \"KillContainer\" for %q with KillContainerError: %q", s.Name, cri.Message(err)))
		}
		return false
	}
	if err := s.w.observe(ctx, s.ID); err != nil {
		return false
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	st := s.w.machine.Containers.Observed.ByID(s.ID)
	return st == nil || st.State == podstate.Exited || st.State == podstate.Created
}
