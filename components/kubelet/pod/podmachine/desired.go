package podmachine

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Desired is what the pod's source and the kubelet require of the pod.
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

// Verdict is a decision of the kubelet to terminate a pod, for example because it was evicted or preempted.
// Reason and Message become those of the pod's status, and its phase becomes Failed.
type Verdict struct {
	Reason, Message string
	// Rejected: the pod was not admitted, so it never ran. Package pods sets it.
	Rejected bool
	// Grace overrides the pod's grace period, in seconds, unless it is nil.
	Grace *int64
	// Discard: the containers and logs are removed as soon as the pod has terminated, to reclaim
	// disk space.
	Discard bool
	// Suspend: the pod terminates only until the next start of the kubelet, which runs it again. Its
	// status is not reported any more, so that the API keeps the one of the running pod.
	Suspend bool
	// Conditions are added to the pod's status.
	Conditions []v1.PodCondition
}

// suspended reports whether the next start of the kubelet runs the pod again.
func (d *Desired) suspended() bool { return d.Verdict != nil && d.Verdict.Suspend }

// mustTerminate reports whether the pod must not run any more: it was removed from its source or deleted in
// the API, or the kubelet has decided to terminate it.
func (d *Desired) mustTerminate() bool {
	return d.Removed || d.Pod.DeletionTimestamp != nil || d.Verdict != nil
}

// SetPod updates the desired pod. If its spec, labels or annotations have changed, failures are retried
// immediately, because the change may fix them. Changed labels or annotations also make the volumes stale,
// because downward API volumes contain them.
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

// Remove records that the pod was removed from its source, and that it is not to be run again afterwards. The
// next step terminates it.
func (m *Machine) Remove() { m.Removed, m.RunAgain = true, false }

// Terminate records the kubelet's decision v to terminate the pod; the next step executes it. It returns
// false, and ignores v, if the pod is already terminating.
func (m *Machine) Terminate(v *Verdict, now time.Time) bool {
	if m.Verdict != nil || m.Stage != Syncing {
		return false
	}
	m.Verdict = v
	// A container that exits with 0 when it is suspended would count as complete when the pod runs again.
	if v.Discard || v.Suspend && m.Pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure {
		m.Discarding = DiscardRequested
	}
	if !v.Rejected {
		m.overdueAt = now.Add(m.overdueAfter())
	}
	return true
}

// ObjectsChanged makes the volumes be updated and failed starts be retried immediately, because a ConfigMap
// or Secret that the pod refers to has changed.
func (m *Machine) ObjectsChanged() {
	m.Volumes.Stale = true
	m.Retry.At = time.Time{}
	m.Containers.retry("CreateContainerConfigError")
}

// minOverdue is the minimum time before a termination by the kubelet is reported as overdue.
const minOverdue = 10 * time.Second

// overdueAfter returns how long the termination of a pod by the kubelet may take before an event reports it
// as overdue: 1.5 times the grace period, at least minOverdue.
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

// reportOverdue adds an event to out, once, when the termination by the kubelet is overdue. If stopped is true, the
// containers have terminated, and nothing is overdue.
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
