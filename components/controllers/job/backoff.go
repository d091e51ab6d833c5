package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// The back-off before failed pods are replaced: the first one, which doubles with each consecutive
// failure, and the maximum.
const (
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
)

// failures are the number of pods of a Job that have failed since the last success, and the time of the last failure.
// The back-off is computed from them.
type failures struct {
	count int
	last  time.Time
}

// backoff returns how long the creation of new pods of the Job k must be delayed. failed and succeeded are the
// termination times of pods that this sync has recorded. Failures before the last success are ignored. It also returns
// the new consecutive failures, which the caller stores with remember when the status is written; otherwise the next
// sync determines them again.
func (c *Controller) backoff(k string, failed, succeeded []time.Time) (time.Duration, failures) {
	c.mu.Lock()
	f := c.failed[k]
	c.mu.Unlock()
	if len(succeeded) > 0 {
		last := slices.MaxFunc(succeeded, time.Time.Compare)
		f = failures{}
		failed = slices.DeleteFunc(slices.Clone(failed), func(at time.Time) bool { return !at.After(last) })
	}
	if len(failed) > 0 {
		f.count += len(failed)
		f.last = slices.MaxFunc(failed, time.Time.Compare)
	}
	if f.count == 0 {
		return 0, f
	}
	return max(0, backoffAfter(f.count)-c.env.Clock.Since(f.last)), f
}

// remember stores the consecutive failures f of the Job with the key k for the next call of backoff.
func (c *Controller) remember(k string, f failures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.count == 0 {
		delete(c.failed, k)
		return
	}
	c.failed[k] = f
}

// backoffAfter returns the back-off after n consecutive failures: firstBackoff, which doubles with each further
// failure up to lastBackoff.
func backoffAfter(n int) time.Duration {
	wait := firstBackoff
	for range n - 1 {
		if wait *= 2; wait >= lastBackoff {
			return lastBackoff
		}
	}
	return wait
}

// finishedAt returns when the pod p terminated, as far as its status shows: the time of its last terminated container
// if all have terminated, or else the time at which it stopped being ready, its deletion, or its creation.
func finishedAt(p *corev1.Pod) time.Time {
	if at := lastContainer(p); !at.IsZero() {
		return at
	}
	if c := control.PodCondition(&p.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if s := p.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		return p.DeletionTimestamp.Add(-grace)
	}
	return p.CreationTimestamp.Time
}

// lastContainer returns when the last container of the pod p terminated, including sidecars, which terminate after the
// others. It returns the zero time if a container has not terminated or its time is missing.
func lastContainer(p *corev1.Pod) (last time.Time) {
	statuses := slices.Clone(p.Status.ContainerStatuses)
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !podutil.Sidecar(c) {
			continue
		}
		for _, s := range p.Status.InitContainerStatuses {
			if s.Name == c.Name {
				statuses = append(statuses, s)
			}
		}
	}
	for i := range statuses {
		t := statuses[i].State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			return time.Time{}
		}
		if t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}
