package pods

import (
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// timing has the times for the metrics of one pod. The worker's mu guards it.
type timing struct {
	// seen is when the pod was first seen. fresh: it had not been started before.
	seen  time.Time
	fresh bool
	// runningRecorded: the transition to Running was recorded. startRecorded: the start of all containers was recorded.
	runningRecorded, startRecorded bool
	// pulled is the total duration of image pulls.
	pulled time.Duration
	// changed is since when the API does not have the current status; zero if it has.
	changed time.Time
	// terminationStarted is when the termination started; zero if it has not. over: the termination was recorded.
	terminationStarted  time.Time
	terminationRecorded bool
}

// startFailure is the failure to start a container, with the reason and message of its waiting
// state.
type startFailure struct{ reason, message string }

func (f *startFailure) Error() string { return f.reason + ": " + f.message }

// kindOf returns the metrics label of a container kind.
func kindOf(kind podstate.Kind) telemetry.ContainerKind {
	switch kind {
	case podstate.Init:
		return telemetry.InitContainer
	case podstate.Ephemeral:
		return telemetry.EphemeralContainer
	}
	return telemetry.Container
}

// countStart records the metrics of an attempt to start a container, and of its image volumes.
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

// timeStatus records the metrics of a status change. The caller must hold mu.
func (w *worker) timeStatus(before, want *v1.PodStatus, now time.Time) {
	w.host.Metrics.StatusChanged(before, want)
	if w.timing.runningRecorded || want.Phase != v1.PodRunning {
		return
	}
	w.timing.runningRecorded = true
	if w.timing.fresh {
		w.host.Metrics.PodRunning(now.Sub(w.timing.seen))
	}
}

// timeStarted records the metrics of the pod's start, when the API reports all containers as
// running. The caller must hold mu.
func (w *worker) timeStarted(pod *v1.Pod) {
	running := func(s v1.ContainerStatus) bool { return s.State.Running != nil && !s.State.Running.StartedAt.IsZero() }
	if w.timing.startRecorded || !w.timing.fresh || IsStatic(pod) || len(pod.Status.ContainerStatuses) == 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return !running(s) }) {
		return
	}
	w.timing.startRecorded = true
	idle := w.timing.pulled
	for i := range pod.Status.InitContainerStatuses {
		if end := pod.Status.InitContainerStatuses[i].State.Terminated; end != nil {
			idle += end.FinishedAt.Sub(end.StartedAt.Time)
		}
	}
	w.host.Metrics.PodStarted(pod, time.Since(pod.CreationTimestamp.Time), idle)
}

// timeEnd records the metrics of the pod's termination. The caller must hold mu.
func (w *worker) timeEnd(now time.Time) {
	switch {
	case w.timing.terminationRecorded:
	case w.stage == terminating && w.timing.terminationStarted.IsZero():
		w.timing.terminationStarted = now
	case w.stage == stopped:
		w.timing.terminationRecorded = true
		if !w.timing.terminationStarted.IsZero() {
			w.host.Metrics.OperationFinished(telemetry.Kill, now.Sub(w.timing.terminationStarted))
		}
	}
}

// pulling returns functions to call when a pull begins, and when the image is present or has
// failed. They measure the duration of pulls.
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
