package pods

import (
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// timing is what is measured of one pod. The worker's mu guards it.
type timing struct {
	// seen is when the pod was first seen; fresh: nobody had begun with it then.
	seen  time.Time
	fresh bool
	// runs: that it runs was noted; told: that it has started was.
	runs, told bool
	// pulled is how long images were pulled for it.
	pulled time.Duration
	// changed is since when the API does not have the newest status; zero: it has.
	changed time.Time
	// ends is when its end began; zero: it has not, or is over.
	ends time.Time
	over bool
}

// startFailure is why a container did not start, in the words of its status.
type startFailure struct{ reason, message string }

func (f *startFailure) Error() string { return f.reason + ": " + f.message }

// kindOf is what a container is called in metrics.
func kindOf(kind podstate.Kind) telemetry.ContainerKind {
	switch kind {
	case podstate.Init:
		return telemetry.InitContainer
	case podstate.Ephemeral:
		return telemetry.EphemeralContainer
	}
	return telemetry.Container
}

// countStart counts an attempt at a container, and the images that are volumes of
// it.
func (w *worker) countStart(c *v1.Container, kind podstate.Kind, err error) {
	code := ""
	if f, ok := errors.AsType[*startFailure](err); ok {
		code = f.reason
	}
	w.host.Metrics.ContainerStarting(kindOf(kind), code)
	images := map[string]bool{}
	w.mu.Lock()
	for i := range c.VolumeMounts {
		if v, ok := w.volumes[c.VolumeMounts[i].Name]; ok && v.Image != nil {
			images[c.VolumeMounts[i].Name] = true
		}
	}
	w.mu.Unlock()
	w.host.Metrics.ImageVolumes(len(images), err)
}

// timeStatus notes what has become of the pod by its new status. The caller holds
// mu.
func (w *worker) timeStatus(before, want *v1.PodStatus, now time.Time) {
	w.host.Metrics.StatusChanged(before, want)
	if w.timing.runs || want.Phase != v1.PodRunning {
		return
	}
	w.timing.runs = true
	if w.timing.fresh {
		w.host.Metrics.PodRuns(now.Sub(w.timing.seen))
	}
}

// timeStarted notes that all containers have started, as the API tells it. The
// caller holds mu.
func (w *worker) timeStarted(pod *v1.Pod) {
	running := func(s v1.ContainerStatus) bool { return s.State.Running != nil && !s.State.Running.StartedAt.IsZero() }
	if w.timing.told || !w.timing.fresh || IsStatic(pod) || len(pod.Status.ContainerStatuses) == 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return !running(s) }) {
		return
	}
	w.timing.told = true
	idle := w.timing.pulled
	for i := range pod.Status.InitContainerStatuses {
		if end := pod.Status.InitContainerStatuses[i].State.Terminated; end != nil {
			idle += end.FinishedAt.Sub(end.StartedAt.Time)
		}
	}
	w.host.Metrics.PodStarted(pod, time.Since(pod.CreationTimestamp.Time), idle)
}

// timeEnd notes how long it takes until nothing of the pod runs. The caller holds
// mu.
func (w *worker) timeEnd(now time.Time) {
	switch {
	case w.timing.over:
	case w.stage == terminating && w.timing.ends.IsZero():
		w.timing.ends = now
	case w.stage == stopped:
		w.timing.over = true
		if !w.timing.ends.IsZero() {
			w.host.Metrics.Worked(telemetry.Kill, now.Sub(w.timing.ends))
		}
	}
}

// pulling notes when a pull begins, and returns what is to be called when it may
// have ended.
func (w *worker) pulling() (begin, end func()) {
	var began time.Time
	begin = func() {
		began = time.Now()
		w.kick()
	}
	end = func() {
		if !began.IsZero() {
			w.mu.Lock()
			w.timing.pulled += time.Since(began)
			w.mu.Unlock()
		}
	}
	return begin, end
}
