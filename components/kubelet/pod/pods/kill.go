package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/pod/probe"
	"hyperkube/internal/base/lifecycle"
)

// kill is a container that is being stopped.
type kill struct {
	pod      *v1.Pod
	name, id string // of the container
	ip       string // of the pod, for the preStop hook
	// shortened: it replaces a kill with a longer grace period that has already run the preStop hook.
	shortened bool
	cancel    context.CancelFunc
	done      chan struct{}
	grace     int64 // seconds
	// turn is closed when a sidecar may be stopped; at the end of the grace period it is stopped
	// regardless. It is nil for other containers. turned: it is closed.
	turn       chan struct{}
	turnClosed bool
}

// minGrace is the minimum time in seconds between the stop signal and the kill, even if the preStop
// hook or waiting for other containers has used up the grace period.
const minGrace = 2

// minPodGrace is the minimum grace period in seconds of a terminating pod, so that its preStop hooks
// can start.
const minPodGrace = 1

// killGrace returns the grace period of a container in seconds, as specified by the pod or by the
// probe that failed. The caller must hold mu.
func (w *worker) killGrace(id string) int64 {
	grace := int64(30)
	if w.pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	st := w.obs.ByID(id)
	if w.stage == syncing && st != nil {
		if c, _ := podstate.Find(w.pod, st.Name); c != nil {
			if g := w.probes[id]; g != nil {
				h := g.Health()
				if h.Startup == podstate.Failure && c.StartupProbe != nil && c.StartupProbe.TerminationGracePeriodSeconds != nil {
					grace = *c.StartupProbe.TerminationGracePeriodSeconds
				} else if h.Liveness == podstate.Failure && c.LivenessProbe != nil && c.LivenessProbe.TerminationGracePeriodSeconds != nil {
					grace = *c.LivenessProbe.TerminationGracePeriodSeconds
				}
			}
		}
	}
	if w.stage != syncing {
		if w.pod.DeletionTimestamp != nil && w.pod.DeletionGracePeriodSeconds != nil {
			grace = *w.pod.DeletionGracePeriodSeconds
		}
		if w.verdict != nil && w.verdict.Grace != nil {
			grace = min(grace, *w.verdict.Grace)
		}
		grace = max(grace, minPodGrace)
	}
	return max(grace, 0)
}

// startKill stops a container in a separate goroutine. If the container is already being stopped, a
// shorter grace period replaces the previous one. The caller must hold mu.
func (w *worker) startKill(ctx context.Context, id, message string, grace int64) {
	w.kill(ctx, id, message, grace, nil)
}

// startOrderedKill is startKill for a sidecar of a terminating pod: its preStop hook runs
// immediately, but the sidecar is stopped after takeTurn was called or its grace period has
// expired. The caller must hold mu.
func (w *worker) startOrderedKill(ctx context.Context, id, message string, grace int64) {
	w.kill(ctx, id, message, grace, make(chan struct{}))
}

// allowStop allows a sidecar to be stopped now. The caller must hold mu.
func (w *worker) allowStop(id string) {
	if k := w.kills[id]; k != nil && k.turn != nil && !k.turnClosed {
		k.turnClosed = true
		close(k.turn)
	}
}

func (w *worker) kill(ctx context.Context, id, message string, grace int64, turn chan struct{}) {
	st := w.obs.ByID(id)
	if st == nil {
		return
	}
	before := w.kills[id]
	if before != nil {
		if before.grace <= grace {
			return
		}
		before.cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &kill{
		pod: w.pod, name: st.Name, id: id, ip: w.podIP(), shortened: before != nil,
		cancel: cancel, done: make(chan struct{}), grace: grace, turn: turn,
	}
	w.kills[id] = k
	slot := w.slots[k.name]
	slot.Killing = true
	w.slots[k.name] = slot
	if !k.shortened {
		w.host.event(k.pod, k.name, false, "Killing", message)
	}
	w.report.wait.Go(func() {
		defer cancel()
		defer close(k.done)
		w.stop(ctx, k)
		w.update(func() {
			if w.kills[id] == k {
				delete(w.kills, id)
				slot := w.slots[k.name]
				slot.Killing = false
				w.slots[k.name] = slot
			}
		})
	})
}

// stop runs the preStop hook, waits for the sidecar's turn, and stops the container. It retries
// until it succeeds or ctx is done.
func (w *worker) stop(ctx context.Context, k *kill) {
	left := time.Duration(k.grace) * time.Second
	c, kind := podstate.Find(k.pod, k.name)
	if c != nil && kind != podstate.Ephemeral && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && k.grace > 0 && !k.shortened {
		began := time.Now()
		hookCtx, cancel := context.WithTimeout(ctx, left)
		err := w.host.Prober.Hook(hookCtx, probe.Target{Pod: k.pod, Container: c, ContainerID: k.id, PodIP: k.ip, Warn: w.host.podWarner(k.pod)}, c.Lifecycle.PreStop)
		cancel()
		if err != nil && ctx.Err() == nil && hookCtx.Err() == nil {
			w.log.Info("preStop hook failed", "container", k.name, "err", err)
			w.host.event(k.pod, k.name, true, "FailedPreStopHook", "PreStopHook failed")
		}
		left -= time.Since(began)
	}
	if k.turn != nil && left > 0 {
		began := time.Now()
		over := time.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-k.turn:
		case <-over.C:
		}
		over.Stop()
		left -= time.Since(began)
	}
	left = max(left, minGrace*time.Second)
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		seconds := int64((left + time.Second - 1) / time.Second)
		_, err := w.host.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: k.id, Timeout: seconds})
		if err == nil || cri.IsNotFound(err) {
			if err := w.observe(ctx, k.id); err == nil {
				w.mu.Lock()
				st := w.obs.ByID(k.id)
				over := st == nil || st.State == podstate.Exited || st.State == podstate.Created
				w.mu.Unlock()
				if over {
					return
				}
			}
		} else if ctx.Err() == nil && !cri.IsUnavailable(err) {
			w.log.Warn("stopping container failed", "container", k.name, "err", err)
			w.host.event(k.pod, "", true, "FailedKillPod", fmt.Sprintf("error killing pod: failed to \"KillContainer\" for %q with KillContainerError: %q", k.name, cri.Message(err)))
		}
		lifecycle.Pause(ctx, pause)
		pause = min(2*pause, 10*time.Second)
	}
}
