package podmachine

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Desired is what the sources and the kubelet want of the pod.
type Desired struct {
	// Pod is the desired pod, as last received from its source.
	Pod *v1.Pod
	// Removed: the pod was removed from its source.
	Removed bool
	// RunAgain: the pod is run again after its termination, so its containers are kept for their
	// logs and restart counts.
	RunAgain bool
	// Verdict is not nil if the kubelet terminates the pod.
	Verdict *Verdict
	// overdueAt is when the termination by the kubelet is reported as overdue; zero means never.
	overdueAt time.Time
}

// Verdict is a decision of the kubelet to terminate a pod.
type Verdict struct {
	Reason, Message string
	// Rejected: the pod was not admitted. The Manager sets it.
	Rejected bool
	// Grace overrides the pod's grace period, in seconds, unless it is nil.
	Grace *int64
	// Discard: the containers and logs are removed as soon as the pod has terminated, to reclaim
	// disk space.
	Discard bool
	// Conditions are added to the pod's status.
	Conditions []v1.PodCondition
}

// mustTerminate reports whether the pod must not run any more.
func (d *Desired) mustTerminate() bool {
	return d.Removed || d.Pod.DeletionTimestamp != nil || d.Verdict != nil
}

// SetPod updates the desired pod. If it has changed, failures are retried immediately, because the
// change may fix them.
func (m *Machine) SetPod(pod *v1.Pod) {
	old := m.Pod
	m.Pod = pod
	marks := !maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations)
	if marks || old.Generation != pod.Generation || !apiequality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		m.Containers.retry("")
		m.Retry.At = time.Time{}
	}
	if marks {
		m.Volumes.Stale = true
	}
}

// Remove records that the pod was removed from its source.
func (m *Machine) Remove() { m.Removed, m.RunAgain = true, false }

// Terminate terminates the pod by a decision of the kubelet, unless it is already terminating. It
// reports whether it does.
func (m *Machine) Terminate(v *Verdict, now time.Time) bool {
	if m.Verdict != nil || m.Stage != Syncing {
		return false
	}
	m.Verdict = v
	if v.Discard {
		m.Discarding = DiscardRequested
	}
	if !v.Rejected {
		m.overdueAt = now.Add(m.overdueAfter())
	}
	return true
}

// ObjectsChanged is called when a ConfigMap or Secret of the pod has changed.
func (m *Machine) ObjectsChanged() {
	m.Volumes.Stale = true
	m.Retry.At = time.Time{}
	m.Containers.retry("CreateContainerConfigError")
}

// minOverdue is the minimum time before an overdue termination is reported, regardless of the
// grace period.
const minOverdue = 10 * time.Second

// overdueAfter returns how long a pod that the kubelet terminates may take before the termination is
// overdue: 1.5 times its grace period.
func (d *Desired) overdueAfter() time.Duration {
	grace := int64(0)
	switch {
	case d.Verdict.Grace != nil:
		grace = *d.Verdict.Grace
	case d.Pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *d.Pod.Spec.TerminationGracePeriodSeconds
	}
	return max(time.Duration(grace)*time.Second*3/2, minOverdue)
}

// reportOverdue decides on an event when the termination by the kubelet is overdue. stopped: the
// containers have terminated.
func (d *Desired) reportOverdue(stopped bool, now time.Time, out *Decision) {
	if stopped {
		d.overdueAt = time.Time{}
	}
	if d.overdueAt.IsZero() || now.Before(d.overdueAt) {
		return
	}
	d.overdueAt = time.Time{}
	out.event("", true, "ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period.")
}

// deadline returns the end of activeDeadlineSeconds of a pod that has started at start; zero if there
// is none. start may be nil.
func (d *Desired) deadline(start *metav1.Time) time.Time {
	if d.Pod.Spec.ActiveDeadlineSeconds == nil || start == nil {
		return time.Time{}
	}
	return start.Add(time.Duration(*d.Pod.Spec.ActiveDeadlineSeconds) * time.Second)
}
