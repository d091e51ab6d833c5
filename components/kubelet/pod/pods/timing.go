package pods

import (
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/telemetry"
)

// timing has the times of one pod from which its metrics are computed. The worker's mu guards it.
type timing struct {
	metrics *telemetry.Metrics
	// seen is when the kubelet first received the pod. fresh: no kubelet had started the pod before.
	seen  time.Time
	fresh bool
	// runningRecorded: the transition to Running was recorded. startRecorded: the start of all containers was recorded.
	runningRecorded, startRecorded bool
	// pulled is the total duration of image pulls.
	pulled time.Duration
	// changed is since when the API does not have the current status; zero if it has.
	changed time.Time
	// terminationStarted is when the termination started; zero if it has not. terminationRecorded: the
	// duration of the termination was recorded.
	terminationStarted  time.Time
	terminationRecorded bool
}

// newTiming returns the timing of a pod that the kubelet has just received for the first time.
func newTiming(metrics *telemetry.Metrics, pod *v1.Pod) timing {
	return timing{metrics: metrics, seen: time.Now(), fresh: pod.Status.StartTime == nil && pod.DeletionTimestamp == nil}
}

// startFailure is the failure to start a container, with the reason and message of its state Waiting.
type startFailure struct{ reason, message string }

func (f *startFailure) Error() string { return f.reason + ": " + f.message }

// kindOf returns the label of metrics for a container kind: app, init or ephemeral container.
func kindOf(kind podstate.Kind) telemetry.ContainerKind {
	switch kind {
	case podstate.Init:
		return telemetry.InitContainer
	case podstate.Ephemeral:
		return telemetry.EphemeralContainer
	}
	return telemetry.Container
}

// countStart records the metrics of an attempt to start the container c of that kind, and of its image
// volumes. err is the result of the attempt.
func (w *starter) countStart(c *v1.Container, kind podstate.Kind, err error) {
	code := ""
	if f, ok := errors.AsType[*startFailure](err); ok {
		code = f.reason
	}
	w.host.Metrics.ContainerStarting(kindOf(kind), code)
	images := map[string]bool{}
	w.mu.Lock()
	for i := range c.VolumeMounts {
		if v, ok := w.volumes.byName[c.VolumeMounts[i].Name]; ok && v.Image != nil {
			images[c.VolumeMounts[i].Name] = true
		}
	}
	w.mu.Unlock()
	w.host.Metrics.ImageVolumes(len(images), err)
}

// statusChanged records the metrics of a change of the pod's status from before to want. When the phase becomes
// Running for the first time, it also records the pod's start latency, unless an earlier kubelet had started
// the pod.
func (t *timing) statusChanged(before, want *v1.PodStatus, now time.Time) {
	t.metrics.StatusChanged(before, want)
	if t.runningRecorded || want.Phase != v1.PodRunning {
		return
	}
	t.runningRecorded = true
	if t.fresh {
		t.metrics.PodRunning(now.Sub(t.seen))
	}
}

// allStarted records the metrics of the pod's start, once, when the API reports all containers as running.
// Static pods and pods that an earlier kubelet has started are ignored. The time of image pulls and init
// containers is recorded separately.
func (t *timing) allStarted(pod *v1.Pod) {
	running := func(s v1.ContainerStatus) bool { return s.State.Running != nil && !s.State.Running.StartedAt.IsZero() }
	if t.startRecorded || !t.fresh || IsStatic(pod) || len(pod.Status.ContainerStatuses) == 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return !running(s) }) {
		return
	}
	t.startRecorded = true
	idle := t.pulled
	for i := range pod.Status.InitContainerStatuses {
		if end := pod.Status.InitContainerStatuses[i].State.Terminated; end != nil {
			idle += end.FinishedAt.Sub(end.StartedAt.Time)
		}
	}
	t.metrics.PodStarted(pod, time.Since(pod.CreationTimestamp.Time), idle)
}

// terminating records when the pod's termination has started and, when it is first called with stopped, how long
// the termination took. stopped is true if no process of the pod runs.
func (t *timing) terminating(stopped bool, now time.Time) {
	switch {
	case t.terminationRecorded:
	case stopped:
		t.terminationRecorded = true
		if !t.terminationStarted.IsZero() {
			t.metrics.OperationFinished(telemetry.Kill, now.Sub(t.terminationStarted))
		}
	case t.terminationStarted.IsZero():
		t.terminationStarted = now
	}
}

// pulling returns functions that add the duration of an image pull to the pod's timing. begin must be called
// when a pull begins, and also wakes the worker, so that the status is updated; end must be called when the
// image is present or the pull has failed. end has no effect without begin.
func (w *starter) pulling() (begin, end func()) {
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
