package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/probe"
)

// kill is a container that is being stopped.
type kill struct {
	cancel context.CancelFunc
	done   chan struct{}
	grace  int64 // seconds
	// turn is closed when a sidecar may end, which it does without, too, when its
	// time is over; nil for others. turned: it is closed.
	turn   chan struct{}
	turned bool
}

// minGrace is what a container gets after its preStop hook, or the containers that
// it waited for, have used the grace period up, in seconds.
const minGrace = 2

// killGrace is how long the container gets to stop, in seconds, as the pod or
// the probe that condemns it says. The caller holds mu.
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
		if w.gone && w.pod.DeletionTimestamp == nil {
			grace = min(grace, 30)
		}
	}
	return max(grace, 0)
}

// startKill stops a container in a goroutine of its own, or makes one that
// does hurry. The caller holds mu.
func (w *worker) startKill(ctx context.Context, id, message string, grace int64) {
	w.kill(ctx, id, message, grace, nil)
}

// startOrderedKill is startKill of a sidecar of a pod that ends: its preStop hook
// is run at once, but it is stopped when takeTurn has been called, or its time
// is over. The caller holds mu.
func (w *worker) startOrderedKill(ctx context.Context, id, message string, grace int64) {
	w.kill(ctx, id, message, grace, make(chan struct{}))
}

// takeTurn says that a sidecar may end now. The caller holds mu.
func (w *worker) takeTurn(id string) {
	if k := w.kills[id]; k != nil && k.turn != nil && !k.turned {
		k.turned = true
		close(k.turn)
	}
}

func (w *worker) kill(ctx context.Context, id, message string, grace int64, turn chan struct{}) {
	st := w.obs.ByID(id)
	if st == nil {
		return
	}
	again := false
	if k := w.kills[id]; k != nil {
		if k.grace <= grace {
			return
		}
		k.cancel()
		again = true
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &kill{cancel: cancel, done: make(chan struct{}), grace: grace, turn: turn}
	w.kills[id] = k
	slot := w.slots[st.Name]
	slot.Killing = true
	w.slots[st.Name] = slot
	name, pod, ip := st.Name, w.pod, w.podIP()
	if !again {
		w.host.event(pod, name, false, "Killing", message)
	}
	w.report.wait.Add(1)
	go func() {
		defer w.report.wait.Done()
		defer cancel()
		defer close(k.done)
		w.stop(ctx, pod, name, id, ip, grace, again, turn)
		w.update(func() {
			if w.kills[id] == k {
				delete(w.kills, id)
				slot := w.slots[name]
				slot.Killing = false
				w.slots[name] = slot
			}
		})
	}()
}

// stop runs the preStop hook, waits for its turn unless that is nil, and stops the
// container, however often that takes; hurried: the hook has been run.
func (w *worker) stop(ctx context.Context, pod *v1.Pod, name, id, ip string, grace int64, hurried bool, turn <-chan struct{}) {
	left := time.Duration(grace) * time.Second
	c, kind := podstate.Find(pod, name)
	if c != nil && kind != podstate.Ephemeral && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 && !hurried {
		began := time.Now()
		hookCtx, cancel := context.WithTimeout(ctx, left)
		err := w.host.Prober.Hook(hookCtx, probe.Target{Pod: pod, Container: c, ContainerID: id, PodIP: ip, Warn: w.host.warns(pod)}, c.Lifecycle.PreStop)
		cancel()
		if err != nil && ctx.Err() == nil && hookCtx.Err() == nil {
			w.log.Info("a preStop hook failed", "container", name, "error", err)
			w.host.event(pod, name, true, "FailedPreStopHook", "PreStopHook failed")
		}
		left -= time.Since(began)
	}
	if turn != nil && left > 0 {
		began := time.Now()
		over := time.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-turn:
		case <-over.C:
		}
		over.Stop()
		left -= time.Since(began)
	}
	if grace > 0 {
		left = max(left, minGrace*time.Second)
	}
	pause := 100 * time.Millisecond
	for ctx.Err() == nil {
		seconds := int64((left + time.Second - 1) / time.Second)
		_, err := w.host.CRI.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		if err == nil || cri.IsNotFound(err) {
			if err := w.observe(ctx, id); err == nil {
				w.mu.Lock()
				st := w.obs.ByID(id)
				over := st == nil || st.State == podstate.Exited || st.State == podstate.Created
				w.mu.Unlock()
				if over {
					return
				}
			}
		} else if ctx.Err() == nil && !cri.IsGone(err) {
			w.log.Warn("stopping a container failed", "container", name, "error", err)
			w.host.event(pod, "", true, "FailedKillPod", fmt.Sprintf("error killing pod: failed to \"KillContainer\" for %q with KillContainerError: %q", name, cri.Message(err)))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, 10*time.Second)
	}
}
