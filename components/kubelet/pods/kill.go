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
}

// minGrace is what a container gets after its preStop hook has used the grace
// period up, in seconds.
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
	w.kill(ctx, id, message, grace, false)
}

// startLateKill is startKill for a container whose turn came when the pod's time was
// over: its preStop hook is not run. The caller holds mu.
func (w *worker) startLateKill(ctx context.Context, id, message string, grace int64) {
	w.kill(ctx, id, message, grace, true)
}

func (w *worker) kill(ctx context.Context, id, message string, grace int64, late bool) {
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
	k := &kill{cancel: cancel, done: make(chan struct{}), grace: grace}
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
		w.stop(ctx, pod, name, id, ip, grace, again || late)
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

// stop runs the preStop hook and stops the container, however often that takes.
func (w *worker) stop(ctx context.Context, pod *v1.Pod, name, id, ip string, grace int64, hurried bool) {
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
		left = max(left-time.Since(began), minGrace*time.Second)
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
